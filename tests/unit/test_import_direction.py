"""Imports point one way, in every folder; each driver is imported in one file; no module acts by being imported.

The source text is walked: imports inside functions count, and so do those under ``if TYPE_CHECKING:``, for a circle of types
is one that a reader has to hold in the head.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import ignis
from tests.support.parsing import parse

PACKAGE = Path(ignis.__file__).parent

# For each folder, bottom first: a unit (a module or folder directly in it) may import the units of the layers under its own,
# and itself; never its neighbours, and never the folder's own ``__init__``.
LAYERS: dict[str, tuple[str, ...]] = {
    "ignis": (
        (
            "_version clock errors escaping exit_status history last_run loading log_events_page log_format log_limit "
            "metric_catalogue near_names private_files regular_files stack_file stop_signals tls_server urls"
        ),
        "bench_report config deploy file_lock hooks main_guard metric_names native places process_hooks",
        "safe_msgpack",
        "body_plan pydantic_models settings_page stacks",
        "bounded_call http_endpoint service_notify",
        "body_codec",
        "message message_parts sweep_result upkeep",
        "storage",
        "array_queue clearing deadlines figures later leader locks message_filter pausing registration schedules tracing",
        "cancellation magazine metrics metrics_page retries told_calls told_progress",
        "context publisher shovel_owed shovel_picks shovel_rounds",
        "two_rings",
        "async_publisher consumer delaying_publisher shovel_choice",
        "shovel_pass",
        "shovel_schedule",
        "shovel",
        "queue_definition",
        "queue_handling",
        "queue_parts",
        "queue_publishing",
        "queue",
        "queue_table",
        "control raw_magazines",
        "app_schedules app_store",
        "app_running app_settings",
        "app",
        "broker dump progress relay spark supervisor testing",
        "console demo",
        "cli",
        "__main__",
    ),
    "ignis.bench_report": (
        "distribution",
        "table",
        "charts",
        "page",
    ),
    "ignis.broker": (
        "protocol repeated_log",
        "auth",
        "client server",
    ),
    "ignis.broker.auth": (
        "logins passwords peer_certificate permissions principal throttle tls",
        "users_file",
        "authenticator",
    ),
    "ignis.broker.client": (
        "address client_request slot sync_transport",
        "later_requests mortal requests",
        "claim_tracker commands pending_acks reconnect store_requests",
        "async_connection client_base shared_reader",
        "sync_connection",
        "async_subscription sync_subscription",
        "async_client sync_client",
        "pending_loads store_arguments store_calls",
        "store_control store_later",
        "store_magazines",
        "store",
    ),
    "ignis.broker.protocol": (
        "commands in_flight",
        "encoding payloads row_count",
        "array_values later_payloads",
        "table",
        "permission_words screening",
        "errors",
        "machine",
    ),
    "ignis.broker.server": (
        (
            "admission bind claimants cluster descriptors farewell flush_plan heap load_notifier loop_descriptor queue_facts "
            "receive_limits state thread_pool waiting_limit"
        ),
        "listener request_turns send_limits threads",
        "long_work",
        "context",
        "connection peer",
        "claim_renewal setting_aside subscription write_batcher",
        "redelivery",
        "recovery",
        "dispatcher",
        "publish_buffer",
        "application",
        "held_claims metrics",
        "caller",
        "application_table broker_commands permission_check presence",
        "calls lone_acks publish_commands",
        "claim_commands later_commands lock_commands queue_commands store_commands",
        "command_table consumer_commands",
        "request_queue",
        "session",
        "ticker",
        "server",
        "health",
    ),
    "ignis.cli": (
        "bench_report command exit_codes filters findings other_words output state",
        "bench broker_user confirm console demo deploy_files doctor_aerospike lazy_group leader locks queue_names relay top",
        "worker_processes",
        "autoscale broker completion doctor_service dump find inspection later pipeline publish queue worker workers",
        "consume doctor schedules sideline",
    ),
    "ignis.dump": (
        "lines",
        "writing",
        "reading",
    ),
    "ignis.console": (
        "lanes refusals refused_logins request_head residence roles sessions turns",
        "snapshot",
        "access audit body_room jobs leases waiting",
        "call",
        "account choice gateway reading system",
        "browsing changing managing",
        "resending",
        "routes",
        "openapi requests",
        "documents",
        "asgi http_server",
        "server",
    ),
    "ignis.consumer": (
        "forked handler_form handler_log middleware taking work",
        "ack_slots call_clock outcome",
        "handler",
        "attempts handler_pattern speeds",
        "runner",
        "registered",
        "pools",
        "chunking in_hand retrying",
        "sideline_items traced",
        "acknowledger long_work",
        "dispatcher",
        "claims giving_back",
        "loop_claims",
        "consumer",
    ),
    "ignis.consumer.pools": (
        "base",
        "gathered",
        "child_log coroutine leading loop",
        "child thread",
        "process_worker",
        "process",
        "factory",
    ),
    "ignis.control": (
        "autoscaler queue_depths redelivery refresher sweep_clock",
        "inspection scheduler sweeper",
        "queue_rates search",
    ),
    "ignis.demo": (
        "data results settings",
        "app processes report spark_app",
        "run spark",
    ),
    "ignis.leader": (
        "address base zookeeper_paths",
        "file lease zookeeper_session",
        "zookeeper_election",
        "zookeeper",
        "choose",
    ),
    "ignis.locks": (
        "calls",
        "renewal",
        "lock",
        "manager",
    ),
    "ignis.native": (
        "_pools channel frame gate handling histogram intake lone outbox plan record ring slab store wait wire",
    ),
    "ignis.relay": (
        "ages channel_label directory due_times publish_only",
        "lost_channel",
        "publisher",
        "channel_reader store",
        "channel_registry forwarder",
        "daemon",
    ),
    "ignis.schedules": (
        "timing",
        "due",
        "stored",
        "fire",
        "book",
    ),
    "ignis.spark": (
        "_pyspark offsets",
        "deadlines due_times",
        "ids json_bodies parse_body queue_path",
        "columns traces unparsed",
        "publish_task",
        "read_task sink",
        "drain_task",
        "pandas_stages source stages trace_column",
        "checkpoint pipeline",
    ),
    "ignis.spark.pipeline": (
        "description files progress report",
        "csv_lines page runs session target",
        "intake reading",
        "checks",
        "folders ingest",
        "export",
    ),
    "ignis.storage": (
        (
            "columns directories expired_log fitting in_flight os_errors pending_load private_directory records repeats runs"
        ),
        "facets later process_identity removing transactions write_batch",
        "purging",
        "base",
        "bounded_reads checks parts",
        "aerospike clock",
        "embedded memory",
    ),
    "ignis.storage.aerospike": (
        "claimed layout owner ranges wake_words",
        "expressions options shard_view waits",
        "status_codes",
        "connection",
        "context pointer_recovery shard_count",
        "array_queues catalogue java_locks queues",
        "append due_index holes locks open_pointers trickle",
        "claim inspection remove",
        "later_records",
        "later_inspection",
        "later",
        "magazines",
        "store",
    ),
    "ignis.storage.embedded": (
        "atomic_files keys listening log_files maintenance options room waiters",
        "clock format owners salvaged",
        "check directory",
        "catalogue context repair",
        "array_queues claim_scan claims inspection load_once locks queues",
        "transfers writes",
        "later",
        "magazines",
        "store",
    ),
    "ignis.storage.memory": (
        "state",
        "control later",
        "magazines",
        "store",
    ),
    "ignis.supervisor": (
        "aggregate control_pipe debug_dump orphaned_claims",
        "process worker_main",
        "manager",
        "http_routes local",
    ),
    "ignis.testing": (
        "clock drain make",
        "memory",
        "plugin",
    ),
    "ignis.tracing": (
        "envelope unsettled",
        "otel",
        "opening publishing records returning",
    ),
    "ignis.upkeep": (
        "threads turns",
        "lasting pool timers",
    ),
}

# The first unit that may say `from ignis import Name`: it is no part of what the package's own module imports.
FIRST_USER = "broker"

DRIVERS = (
    "aerospike",
    "kazoo",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "pydantic",
    "pyspark",
    "pytest",
    "starlette",
    "uvicorn",
)

# What only the commands need: a service that publishes does not pay for it at import.
TERMINAL = {"click": {"cli"}, "rich": {"cli", "demo", "progress"}}

# Calls that a module may make for itself when it is imported: one owns the hooks into the process.
ACTS = {"ignis.process_hooks": {"os.register_at_fork", "atexit.register"}}

RANKS = {
    folder: {unit: rank for rank, units in enumerate(rows) for unit in units.split()} for folder, rows in LAYERS.items()
}


def module_name(path: Path) -> str:
    return ".".join(("ignis", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
NATIVE = {module_name(path) for path in sorted((PACKAGE / "native").glob("*.pyx"))}
FOLDERS = {name for name, path in SOURCES.items() if path.name == "__init__.py"}


def imports(node: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported; ``from a import b`` gives ``a.b``."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            yield from (f"{module}.{alias.name}" for alias in child.names)


def module_of(name: str) -> str:
    """The module that an imported name is of."""
    while name not in SOURCES and name not in NATIVE:
        name = name.rpartition(".")[0]
    return name


def verdict(module: str, name: str) -> str | None:
    """What is wrong with a module's import of a name; None when nothing is."""
    if name.startswith("."):
        return f"{module}: relative import {name}"
    if name != "ignis" and not name.startswith("ignis."):
        return None
    target = module_of(name)
    if target == module:
        return None
    folder = "ignis"
    while True:
        ours, theirs = (one[len(folder) + 1 :].split(".")[0] for one in (module, target))
        if ours != theirs:
            break
        folder = f"{folder}.{ours}"
    ranks = RANKS[folder]
    if ours == "":  # the folder's own module gives out what its units have
        right = folder != "ignis" or ranks[theirs] < ranks[FIRST_USER]
    elif theirs == "":
        right = folder == "ignis" and ranks[ours] >= ranks[FIRST_USER]
    else:
        right = ranks[theirs] < ranks[ours]
    return None if right else f"{module} imports {target}"


_TREES: dict[str, ast.Module] = {}


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    _TREES.clear()


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Parsed once for all tests of this file."""
    for name, path in SOURCES.items():
        if name not in _TREES:
            _TREES[name] = parse(path.read_text(encoding="utf-8"), str(path))
        yield name, _TREES[name]


def test_every_unit_has_its_place() -> None:
    found = defaultdict(set)
    for name in {*SOURCES, *NATIVE} - {"ignis"}:
        folder, _, unit = name.rpartition(".")
        found[folder].add(unit)
    assert {folder: set(ranks) for folder, ranks in RANKS.items()} == found, "give the new unit its place in LAYERS"


def test_imports_point_down() -> None:
    assert [problem for name, tree in trees() for used in imports(tree) if (problem := verdict(name, used))] == []


def acts(tree: ast.Module) -> Iterator[str]:
    """What a module does when it is imported, beside saying what is in it. Its own objects it may fill."""
    own = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    own |= {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            root: ast.AST = node.value
            while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
                root = root.func if isinstance(root, ast.Call) else root.value
            if not (
                isinstance(root, ast.Name)
                and root.id in own
                and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Attribute)
            ):
                yield ast.unparse(node)
        elif isinstance(node, (ast.With, ast.While, ast.Delete)):
            yield ast.unparse(node)


def test_no_module_acts_by_being_imported() -> None:
    wrong = [
        f"{name}: {act}"
        for name, tree in trees()
        for act in acts(tree)
        if act.partition("(")[0] not in ACTS.get(name, ())
    ]
    assert wrong == []


def test_native_sources_know_only_errors() -> None:
    statement = re.compile(r"\s*(?:from|import|cimport)\s+ignis\b.*")
    rightful = re.compile(r"\s*(?:from\s+ignis\s+import\s+errors\b|(?:from|c?import)\s+ignis\.(?:native|errors)\b).*")
    files = [path for suffix in ("pyx", "pxd", "pxi") for path in (PACKAGE / "native").glob(f"*.{suffix}")]
    wrong = [
        f"{path.name}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if statement.fullmatch(line) and not rightful.fullmatch(line)
    ]
    assert wrong == []


def test_each_driver_is_imported_in_one_file() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees():
        for name in imports(tree):
            if (top := name.split(".")[0]) in DRIVERS:
                found[top].add(module)
    assert {driver: files for driver, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize("name", sorted(TERMINAL))
def test_terminal_libraries_stay_with_the_commands(name: str) -> None:
    users = {module.split(".")[1] for module, tree in trees() for used in imports(tree) if used.split(".")[0] == name}
    assert users <= TERMINAL[name]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ignis.storage.base", "from ignis.magazine import Magazine"),
        ("ignis.storage.base", "def f():\n    import ignis.app"),
        ("ignis.storage.memory.store", "from ignis.storage.embedded.store import EmbeddedStore"),
        ("ignis.storage.memory.store", "from ignis.storage import open_store"),
        ("ignis.errors", "import ignis.config"),
        ("ignis.broker.client.sync_client", "from ignis.broker.server.session import Session"),
        ("ignis.broker.server.session", "from ignis.broker.client.sync_client import SyncClient"),
        ("ignis.app", "from ignis.cli import main"),
        ("ignis", "from ignis import demo"),
        ("ignis.demo.run", "from ignis.cli import output"),
        ("ignis.magazine", "from .queue import Queue"),
        ("ignis.publisher", "try:\n    from ignis.app import Ignis\nexcept ImportError:\n    raise"),
        ("ignis.publisher", "if TYPE_CHECKING:\n    from ignis.app import Ignis"),
    ],
)
def test_a_planted_import_is_found(module: str, source: str) -> None:
    assert any(verdict(module, name) for name in imports(parse(source)))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ignis.storage.memory.store", "from ignis.storage.base import Store"),
        ("ignis.storage", "from ignis.storage.base import Store"),
        ("ignis.magazine", "from ignis.storage.base import Store"),
        ("ignis.magazine", "from ignis.storage import open_store"),
        ("ignis.cli.worker", "from ignis import Ignis\nfrom ignis.demo import run"),
        ("ignis.native", "from ignis.errors import IgnisError"),
    ],
)
def test_a_rightful_import_passes(module: str, source: str) -> None:
    assert [verdict(module, name) for name in imports(parse(source)) if verdict(module, name)] == []


@pytest.mark.parametrize(
    "source",
    [
        "TABLE.update(x=1)",
        "import atexit\natexit.register(print)",
        "print()",
        "with open(NAME):\n    pass",
        "def f(): ...\nf()",
    ],
)
def test_a_planted_act_is_found(source: str) -> None:
    assert list(acts(parse(source)))


@pytest.mark.parametrize("source", ["TABLE = {}\nTABLE.update(x=1)", "def f(): ...\nf.more(1)"])
def test_what_a_module_may_say_passes(source: str) -> None:
    assert list(acts(parse(source))) == []
