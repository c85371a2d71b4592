"""Settings: where values come from, what they may be, and what an error says."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from pathlib import Path

import pytest

import ignis
from ignis.config import (
    SECTIONS,
    ConsumerSettings,
    QueueSettings,
    SweeperSettings,
    check_name,
    check_queue_name,
    check_sections,
    load_file,
    number_text,
    parse_duration_s,
    resolve,
)
from ignis.errors import ConfigError, InvalidNameError
from ignis.storage import open_store


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90.0),
        (0.25, 0.25),
        ("90", 90.0),
        ("90s", 90.0),
        ("20m", 1_200.0),
        ("2d", 172_800.0),
        ("1.5h", 5_400.0),
        ("500ms", 0.5),
        (" 1 w ", 604_800.0),
        (dt.timedelta(minutes=2), 120.0),
    ],
)
def test_duration(value: object, seconds: float) -> None:
    assert parse_duration_s(value, "x") == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "fast", "-5", "5 parsecs", "1e3", None, True, []])
def test_duration_that_is_none_names_the_setting_and_the_value(value: object) -> None:
    with pytest.raises(ConfigError, match=r"queue\.stuck_after_s = "):
        parse_duration_s(value, "queue.stuck_after_s")


@pytest.mark.parametrize("name", ["a", "orders.eu-1_x", "A" * 128, "0"])
def test_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a\n", "A" * 129, None, 7, b"a"])
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidNameError, match=r"A-Za-z0-9\._-"):
        check_name(name)


@pytest.mark.parametrize("cls", SECTIONS)
def test_every_default_is_valid_and_documented(cls: type) -> None:
    settings = cls()
    assert cls.section
    for spec in dataclasses.fields(cls):
        assert spec.metadata["does"], spec.name
        assert getattr(settings, spec.name) == spec.default


def test_the_promised_defaults() -> None:
    queue, consumer, sweeper = QueueSettings(), ConsumerSettings(), SweeperSettings()
    assert (queue.shards, queue.message_expiry_s, queue.queue_expiry_s) == (32, 0, 172_800)
    assert (queue.shovel_interval_s, queue.shovel_concurrency, queue.stuck_after_s) == (600, 4, 1_200)
    assert queue.durability == "sync"
    assert (consumer.max_consumers, consumer.initial_delay_s, consumer.idle_poll_s) == (100, 0, 1)
    assert (sweeper.interval_s, sweeper.initial_delay_s, sweeper.batch, sweeper.parallel_queues) == (
        900,
        600,
        1_000,
        64,
    )


@pytest.mark.parametrize(
    ("setting", "low", "high"),
    [
        ("shards", 1, 512),
        ("message_expiry_s", 0, 365 * 86_400),
        ("max_returns", 0, 65_535),
        ("stuck_after_s", 300, 18_000),
        ("shovel_interval_s", 0, 86_400),
        ("shovel_concurrency", 1, 50),
    ],
)
def test_ranges_hold_at_both_ends(setting: str, low: int, high: int) -> None:
    wide = {"queue_expiry_s": 365 * 86_400}
    for value in (low, high):
        assert getattr(QueueSettings(**{**wide, setting: value}), setting) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=rf"queue\.{setting} = {value}.* is outside {low:g} to"):
            QueueSettings(**{**wide, setting: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_outside_every_range(value: float) -> None:
    with pytest.raises(ConfigError, match="outside"):
        QueueSettings(stuck_after_s=value)


@pytest.mark.parametrize("value", ["many", 1.5, True, None, "1.5", [1]])
def test_whole_numbers(value: object) -> None:
    with pytest.raises(ConfigError, match=r"queue\.shards = .* is not a whole number"):
        QueueSettings(shards=value)  # type: ignore[arg-type]


def test_booleans_come_as_text_too() -> None:
    assert SweeperSettings(dead_owners="off").dead_owners is False  # type: ignore[arg-type]
    assert SweeperSettings(dead_owners="Yes").dead_owners is True  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not true or false"):
        SweeperSettings(dead_owners="maybe")  # type: ignore[arg-type]


def test_choices() -> None:
    with pytest.raises(ConfigError, match="is not one of sync, interval, none"):
        QueueSettings(durability="always")


def test_a_queue_outlives_its_messages() -> None:
    with pytest.raises(
        ConfigError, match=r"queue_expiry_s = 10 is below message_expiry_s = 20: .* of at least 20 s too"
    ):
        QueueSettings(message_expiry_s=20, queue_expiry_s=10)


def test_precedence() -> None:
    file = {"queue": {"shards": 3, "stuck_after": "10m", "orders": {"shards": 4}}}
    environ = {"IGNIS_QUEUE_SHARDS": "5"}
    stored = {"shards": 2, "durability": "none"}

    def shards(*, arguments: dict | None = None, name: str | None = "orders", **given: dict) -> int:
        return resolve(QueueSettings, arguments or {}, name=name, **{"environ": {}, **given}).shards  # type: ignore[arg-type]

    assert shards() == 32
    assert shards(stored=stored) == 2
    assert shards(stored=stored, file=file, name="others") == 3
    assert shards(stored=stored, file=file) == 4
    assert shards(stored=stored, file=file, environ=environ) == 5
    assert shards(stored=stored, file=file, environ=environ, arguments={"shards": 6}) == 6
    assert shards(stored=stored, file=file, environ=environ, arguments={"shards": None}) == 5
    everything = resolve(QueueSettings, {}, file, name="orders", environ=environ, stored=stored)
    assert (everything.stuck_after_s, everything.durability) == (600, "none")


def test_durations_without_their_unit_suffix() -> None:
    assert resolve(QueueSettings, {"message_expiry": "1d"}, environ={}).message_expiry_s == 86_400
    assert resolve(QueueSettings, {}, environ={"IGNIS_QUEUE_STUCK_AFTER": "10m"}).stuck_after_s == 600
    both = {"IGNIS_QUEUE_STUCK_AFTER": "10m", "IGNIS_QUEUE_STUCK_AFTER_S": "700"}
    assert resolve(QueueSettings, {}, environ=both).stuck_after_s == 700


@pytest.mark.parametrize(
    ("arguments", "file", "says"),
    [
        ({"shard": 1}, {}, r"unknown queue setting 'shard' \(argument\); is shards meant\? known: codec"),
        ({}, {"queue": {"colour": 1}}, r"unknown queue setting 'colour' \(settings file, \[queue\]\); known: codec"),
        (
            {},
            {"queue": {"orders": {"colour": 1}}},
            r"unknown queue setting 'colour' \(settings file, \[queue\.orders\]\)",
        ),
    ],
)
def test_unknown_settings_are_refused(arguments: dict, file: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(QueueSettings, arguments, file, name="orders", environ={})


def test_only_queues_have_tables_by_name() -> None:
    with pytest.raises(ConfigError, match="unknown sweeper setting 'orders'"):
        resolve(SweeperSettings, {}, {"sweeper": {"orders": {"batch": 1}}}, environ={})


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ignis.toml"
    path.write_text(text, "utf-8")
    return path


def test_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'url = "memory://"\n[queue]\nshards = 8\n[queue.orders]\nstuck_after = "5m"\n')
    file = load_file(path)
    assert file["url"] == "memory://"
    settings = resolve(QueueSettings, {}, file, name="orders", environ={})
    assert (settings.shards, settings.stuck_after_s) == (8, 300)
    assert load_file(None, {"IGNIS_CONFIG": str(path)}) == file
    assert load_file(None, {}) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[queues]\n",
            r"unknown section \[queues\]; is queue meant\? known: autoscaler, broker, .*, sweeper, tracing, url",
        ),
        ("queue = 5\n", "queue = 5 is not a table"),
        ("url = 5\n", "url = 5 is not text"),
        ("[queue\n", "ignis.toml"),
        ("\udcff", "ignis.toml"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "ignis.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=says):
        load_file(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such\.toml: No such file"):
        load_file(tmp_path / "no-such.toml")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        QueueSettings().shards = 5  # type: ignore[misc]


# -- variables of the environment


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("IGNIS_QUEUE_SHARD", "is IGNIS_QUEUE_SHARDS meant"),
        ("IGNIS_QUEUES_SHARDS", "is IGNIS_QUEUE_SHARDS meant"),
        ("IGNIS_RUL", "is IGNIS_URL meant"),
        ("IGNIS_TOKE", "is IGNIS_TOKEN meant"),
        ("IGNIS_CONSUMER_MAX_CONSUMER", "is IGNIS_CONSUMER_MAX_CONSUMERS meant"),
        ("IGNIS_CLIENT_ID", r"Ignis\(url, client_id=\.\.\., .* commands take --client-id"),
        ("IGNIS_FARM_ID", r"Ignis\(url, client_id=\.\.\., .* commands take --client-id"),
        ("IGNIS_BROKER_COLOUR_OF_THE_DOOR", "which names no setting; docs/settings.md"),
    ],
)
def test_a_misspelt_variable_is_not_ignored(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}, .*{says}"):
        load_file(None, {name: "5"})


@pytest.mark.parametrize("text", ['client_id = "shop"', "[client_id]\nx = 1", '[client]\nfarm_id = "west"'])
def test_the_name_of_an_application_is_no_setting(tmp_path: Path, text: str) -> None:
    """What was said then named a section that has no such thing either."""
    path = tmp_path / "ignis.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"Ignis\(url, client_id=\.\.\., .* commands take --client-id"):
        check_sections(load_file(path))


def test_variables_that_are_known_or_somebody_elses() -> None:
    spellings = {
        f"IGNIS_{cls.section}_{one}".upper()
        for cls in SECTIONS
        for spec in dataclasses.fields(cls)
        for one in (spec.name, spec.name.removesuffix("_s"))
    }
    tools = {"IGNIS_URL", "IGNIS_TOKEN", "IGNIS_PYTHON", "IGNIS_TEST_AEROSPIKE", "IGNIS_TORTURE_URL", "IGNIS_DEMO_DIR"}
    cluster = {  # what Kubernetes tells every container of services that are called ignis and ignis-broker
        "IGNIS_SERVICE_HOST", "IGNIS_SERVICE_PORT", "IGNIS_PORT", "IGNIS_PORT_9710_TCP", "IGNIS_PORT_9710_TCP_ADDR",
        "IGNIS_BROKER_SERVICE_HOST", "IGNIS_BROKER_SERVICE_PORT_TLS", "IGNIS_BROKER_PORT", "IGNIS_BROKER_PORT_9710_TCP_PROTO",
    }  # fmt: skip
    assert load_file(None, dict.fromkeys(spellings | tools | cluster | {"PATH", "IGNISX"}, "1")) == {}


def test_a_variable_of_somebody_else_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        load_file(None, {"IGNIS_HOUSE_KEEPING_CREW": "x"})
    assert caplog.text.count("IGNIS_HOUSE_KEEPING_CREW, which names no setting") == 1


@pytest.mark.parametrize("name", ["IGNIS_ENV", "IGNIS_USER", "IGNIS_KEY"])
def test_a_variable_is_not_near_by_what_all_begin_with(caplog: pytest.LogCaptureFixture, name: str) -> None:
    """IGNIS_TOKEN was guessed for IGNIS_ENV, and every command refused."""
    assert load_file(None, {name: "prod"}) == {}
    assert f"{name}, which names no setting of ignis" in caplog.text


def test_every_variable_that_the_project_reads_is_known() -> None:
    root = Path(__file__).parents[2]
    if not (root / "Makefile").exists():
        pytest.skip("wants the repository")
    files = [
        path for part in ("ignis", "scripts", "bench", "tests") for path in (root / part).rglob("*") if path.is_file()
    ]
    found: set[str] = set()
    for path in [*files, root / "Makefile", root / "setup.py"]:
        if path.suffix in (".py", ".sh", "") and path != Path(__file__):
            text = path.read_text("utf-8", "replace")
            found |= set(
                re.findall(r"(?:environ(?:\.get)?[\[(]\s*|getenv\(|envvar=|setenv\()\"(IGNIS_[A-Z_]+[A-Z])\"", text)
            )
            found |= set(re.findall(r"\$\{?(IGNIS_[A-Z_]+[A-Z])", text))
    assert found >= {"IGNIS_URL", "IGNIS_PYTHON", "IGNIS_BROKER_USERS"}
    assert load_file(None, {**dict.fromkeys(found, "1"), "IGNIS_CONFIG": ""}) == {}


# -- names


@pytest.mark.parametrize(
    "name",
    [
        "jobs_SHARD_1",
        "jobs_SHARD_31",
        "jobs_SHARDS",
        "jobs_POINTERS",
        "jobs_COUNTERS",
        "jobs_SIDELINE",
        "a_SIDELINE_SHARD_0",
    ],
)
def test_a_queue_is_not_called_like_the_keys_of_another(name: str) -> None:
    with pytest.raises(InvalidNameError, match=rf"queue name '{name}' ends in _"):
        check_queue_name(name)
    with ignis.Ignis("memory://") as app:
        with pytest.raises(InvalidNameError, match="ends in"):
            app.queue(name, int)
        with pytest.raises(InvalidNameError, match="ends in"):
            app.magazine(name + ("_SIDELINE" if name.endswith("_SIDELINE") else ""))


@pytest.mark.parametrize(
    "name", ["jobs_SHARD", "jobs_SHARD_x", "jobs_SHARD_1a", "SHARDS", "jobs_shards", "jobs_POINTERS_", "x1"]
)
def test_names_that_only_look_like_it(name: str) -> None:
    assert check_queue_name(name) == name


def test_a_secret_is_not_in_an_error() -> None:
    for url in ("ignis://ann:hunter2@host\0", "ignis://ann:hunter2\ud800@host", "ignis://ann:hunter2@[::1", 7):
        with pytest.raises(ConfigError) as info, ignis.Ignis(url) as app:  # type: ignore[arg-type]
            _ = app.store
        assert "hunter2" not in str(info.value)
    secrets = [(cls, spec.name) for cls in SECTIONS for spec in dataclasses.fields(cls) if not spec.repr]
    assert secrets
    for cls, name in secrets:
        for value in ("hunter2\0", "hunter2\ud800", b"hunter2", ["hunter2"]):
            with pytest.raises(ConfigError, match=name) as info:
                resolve(cls, {name: value})
            assert "hunter2" not in str(info.value)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"IGNIS_CONSUMER_ACK_RETRY": "soon"},
            r"'soon' is not a duration.*\(environment variable IGNIS_CONSUMER_ACK_RETRY\)$",
        ),
        ({"IGNIS_CONSUMER_ACK_RETRY_S": ""}, r"\(environment variable IGNIS_CONSUMER_ACK_RETRY_S\)$"),
        ({"IGNIS_QUEUE_SHARDS": "9999"}, r"queue.shards = 9999 .*\(environment variable IGNIS_QUEUE_SHARDS\)$"),
        ({"IGNIS_PUBLISHER_CAPACITY": "7"}, r"\(environment variable IGNIS_PUBLISHER_CAPACITY\)$"),
        ({"IGNIS_RELAY_CAPACITY": "100"}, r"\(environment variable IGNIS_RELAY_CAPACITY\)$"),
        (
            {"IGNIS_QUEUE_MESSAGE_EXPIRY": "3d", "IGNIS_QUEUE_QUEUE_EXPIRY": "1d"},
            r"\(environment variable IGNIS_QUEUE_",
        ),
    ],
)
def test_a_bad_variable_is_named(variables: dict[str, str], says: str) -> None:
    """Whoever reads the error has not written it into the program, and looks for where it comes from."""
    with pytest.raises(ConfigError, match=says):
        check_sections({}, environ=variables)


def test_a_bad_value_of_the_file_is_named_by_its_table() -> None:
    with pytest.raises(ConfigError, match=r"consumer.ack_retry_s = 'soon' .*\(settings file, \[consumer\]\)$"):
        resolve(ConsumerSettings, {}, {"consumer": {"ack_retry": "soon"}}, environ={})
    with pytest.raises(ConfigError, match=r"\(settings file, \[queue\] or \[queue.orders\]\)$"):
        resolve(QueueSettings, {}, {"queue": {"orders": {"shards": 0}}}, name="orders", environ={})


@pytest.mark.parametrize("section", ["broker", "client", "supervisor", "locks", "autoscaler", "spark", "relay"])
def test_an_application_reads_all_of_the_file(section: str, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(f"[{section}]\nno_such = 3\n", "utf-8")
    with pytest.raises(ConfigError, match=rf"unknown {section} setting 'no_such' \(settings file, \[{section}\]\)"):
        ignis.Ignis("memory://", config=tmp_path / "settings.toml")


def test_a_setting_is_given_under_one_of_its_names() -> None:
    app = ignis.Ignis("memory://")
    with pytest.raises(
        ConfigError, match=r"stuck_after_s is given twice \(argument\), as stuck_after and as stuck_after_s"
    ):
        app.queue("twice", bytes, stuck_after=400, stuck_after_s=500)
    with pytest.raises(ConfigError, match=r"ack_retry_s is given twice \(settings file, \[consumer\]\)"):
        resolve(ConsumerSettings, {}, {"consumer": {"ack_retry": 1, "ack_retry_s": 2}}, environ={})


def test_what_an_argument_says_is_nobody_elses() -> None:
    with pytest.raises(ConfigError, match=r"outside 1 to 512$"):
        resolve(QueueSettings, {"shards": 0}, {"queue": {"shards": 9_999}}, environ={"IGNIS_QUEUE_SHARDS": "x"})


@pytest.mark.parametrize("url", ["foo://bar", "embedded:///tmp/x?size=1", "nowhere"])
def test_the_variable_with_a_bad_url_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGNIS_URL", url)
    with pytest.raises(ConfigError, match="environment variable IGNIS_URL"):
        _ = ignis.Ignis().store
    with pytest.raises(ConfigError) as told:
        _ = ignis.Ignis(url).store
    assert "IGNIS_URL" not in str(told.value)


def test_the_variable_with_a_bad_settings_file_is_named(tmp_path: Path) -> None:
    for content in (None, "[queue", "[nothing]\n"):
        path = tmp_path / "ignis.toml"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigError, match="environment variable IGNIS_CONFIG"):
            load_file(None, environ={"IGNIS_CONFIG": str(path)})
        with pytest.raises(ConfigError) as told:
            load_file(path, environ={"IGNIS_CONFIG": "/else"})
        assert "IGNIS_CONFIG" not in str(told.value)


def test_a_range_is_said_in_whole_numbers() -> None:
    with pytest.raises(ConfigError, match=r"is outside 2 to 16777216$"):
        ignis.Ignis(publisher={"capacity": 1})


def test_a_bound_is_written_with_all_its_digits() -> None:
    assert [number_text(one) for one in (1 << 46, 1.0, 0.01, -5)] == ["70368744177664", "1", "0.01", "-5"]
    with pytest.raises(ConfigError, match="outside 1048576 to 70368744177664"):
        open_store("embedded:///tmp/never-made?max_store_bytes=1")
