"""Every setting of ignis: name, unit, range, default, and where its value comes from.

Precedence, written once in :func:`resolve`: argument > environment > file > default. One frozen dataclass per
component, validated on construction. ``docs/settings.md`` is generated from these classes by `ignis.settings_page`.

* environment: ``IGNIS_<SECTION>_<NAME>``, for example ``IGNIS_QUEUE_SHARDS=64``;
* file: TOML, named by ``IGNIS_CONFIG`` or the ``config`` argument, one table per section, and
  ``[queue.<queue name>]`` for one queue;
* a duration ``x_s`` may also be given as ``x`` and then accepts ``"20m"``, ``"500ms"``, a number of seconds, or a
  ``datetime.timedelta``.

Nothing is read at import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import math
import operator
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ignis.errors import ConfigError, InvalidNameError
from ignis.log_format import event_text
from ignis.near_names import meant, near_name
from ignis.regular_files import check_regular, read_text
from ignis.urls import masked

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - 3.10 only
    import tomli as tomllib

__all__ = [
    "APPLICATION",
    "APPLICATION_HINT",
    "NAME_PATTERN",
    "AutoscalerSettings",
    "BrokerSettings",
    "ClientSettings",
    "ConsumerSettings",
    "LeaderSettings",
    "LockSettings",
    "PublisherSettings",
    "QueueSettings",
    "RefresherSettings",
    "RelaySettings",
    "RetrySettings",
    "SchedulesSettings",
    "SparkSettings",
    "SupervisorSettings",
    "SweeperSettings",
    "TracingSettings",
    "check_name",
    "check_number",
    "check_queue_name",
    "check_sections",
    "check_text",
    "check_timeout",
    "check_whole",
    "given_names",
    "load_file",
    "naming",
    "number_text",
    "parse_bool",
    "parse_duration_s",
    "parse_number",
    "resolve",
    "unlimited_duration_s",
    "url_named",
]

NAME_PATTERN = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,128}\Z")
_OTHERS_KEYS = re.compile(r"_(?:SHARD_[0-9]+|SHARDS|POINTERS|COUNTERS|SIDELINE)\Z")
MAX_EXPIRY_S = 365 * 86_400
LEAST_STUCK_AFTER_S = 300
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SHOWN_CHARS = 100
_LARGEST = (1 << 63) - 1
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?\s*\Z")

log = logging.getLogger("ignis.config")
T = TypeVar("T", bound="_Settings")


def parse_duration_s(value: object, name: str) -> float:
    """Seconds from ``"2d"``, ``"500ms"``, a number (seconds) or a timedelta. Raises ConfigError naming ``name``."""
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _float(value, name)
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{name} = {shown(value)} is not a duration; write 90, '90s', '20m', '2d' or '500ms'")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def unlimited_duration_s(value: object, name: str) -> float:
    """`parse_duration_s`, to which no number is too large: who compares it with his limit can name both."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return math.inf if value > 0 else -math.inf
    return parse_duration_s(value, name)


def check_name(name: object, what: str = "queue") -> str:
    """Returns the name, or raises InvalidNameError. Names become file names, labels of metrics and keys of stores."""
    if not isinstance(name, str) or NAME_PATTERN.match(name) is None:
        raise InvalidNameError(f"{what} name {shown(name)} does not match [A-Za-z0-9._-]{{1,128}}, or is . or ..")
    return str.__str__(name)  # a plain str: a record with a subclass of it could not be stored


def check_queue_name(name: object, what: str = "queue") -> str:
    """`check_name` for a queue or a magazine without one. Raises InvalidNameError for a name that is a key of another queue.

    A store makes keys from names: ``jobs_SHARD_1_POINTERS`` are the pointers of shard 1 of ``jobs``. So a name must not end
    like such a key: in ``_SHARD_<number>``, ``_SHARDS``, ``_POINTERS``, ``_COUNTERS`` or ``_SIDELINE``.
    """
    checked = check_name(name, what)
    ending = _OTHERS_KEYS.search(checked)
    if ending is not None:
        of = "which names another queue's sideline" if ending[0] == "_SIDELINE" else "as keys of another queue do"
        raise InvalidNameError(f"{what} name {checked!r} ends in {ending[0]}, {of}")
    return checked


def check_whole(value: object, name: str, low: int, high: int | None = None) -> int:
    """Returns the whole number, or raises ConfigError naming ``name``. A bool, a float and text are refused."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type] # refuses what has no index
    except TypeError:
        raise ConfigError(f"{name} = {shown(value)} is not a whole number") from None
    if high is None:
        if number < low:
            raise ConfigError(f"{name} = {shown(number)} is below {low}")
        if number > _LARGEST:
            raise ConfigError(f"{name} = {shown(number)} does not fit into 63 bits")
    elif not low <= number <= high:
        raise ConfigError(f"{name} = {shown(number)} is outside {low} to {high}")
    return number


def check_number(value: object, name: str, low: float = 0, high: float | None = None, *, above: bool = False) -> float:
    """Returns the finite number, or raises ConfigError naming ``name``. ``above``: ``low`` itself is too low."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        seconds = " of seconds, such as 30 or 0.5" if isinstance(value, str) and name.endswith("_s") else ""
        raise ConfigError(f"{name} = {shown(value)} is not a number{seconds}")
    number = _float(value, name)
    if not math.isfinite(number):
        raise ConfigError(f"{name} = {shown(value)} is not a finite number")
    if above and number <= low:
        raise ConfigError(f"{name} = {shown(value)} is not above {number_text(low)}")
    if number < low or (high is not None and number > high):
        raise ConfigError(f"{name} = {shown(value)} is {_outside(low, high)}")
    return value


def parse_number(value: object, name: str, kind: type) -> float:
    """Returns an int or float, from a number or from text, as URLs and the environment have it. Raises ConfigError."""
    if not isinstance(value, str):
        return check_whole(value, name, -_LARGEST) if kind is int else check_number(value, name, -math.inf)
    try:
        return int(value) if kind is int else float(value)
    except ValueError:
        raise ConfigError(f"{name} = {shown(value)} is not {_KINDS[kind]}") from None


def check_timeout(value: object, name: str = "timeout") -> float:
    """Returns the seconds, 0 or more; more than a year, such as infinity, becomes a year. Raises ConfigError."""
    if isinstance(value, float) and value == math.inf:
        return MAX_EXPIRY_S
    return min(check_number(value, name), MAX_EXPIRY_S)


def check_text(value: object, name: str, *, secret: bool = False) -> str:
    """Returns the text, or raises ConfigError. It must be UTF-8 and have no NUL, as it goes into stores and system calls.

    ``secret``: the value may contain a password and is left out of the error.
    """
    given = name if secret else f"{name} = {shown(value)}"
    if not isinstance(value, str):
        raise ConfigError(f"{given} is not text")
    if "\0" in value:
        raise ConfigError(f"{given} has a NUL")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{given} is not UTF-8: {exc.reason} at {exc.start}") from None
    return value


def shown(value: object) -> str:
    """Returns the value for an error's text: printable, cut where it is long, and without what may be a password (`masked`).

    Use `kind_of` where a URL, store options or other secrets are expected."""
    try:
        text = ascii(value)
    except Exception:  # a foreign object's own repr
        text = f"a {type(value).__name__}"
    size = len(text)
    text = masked(text)
    return text if size <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}... ({size} characters)"


def kind_of(value: object) -> str:
    """Returns the type and length of a value without a character of it, since it may be a secret."""
    size = f" of length {len(value)}" if isinstance(value, (str, bytes, list, tuple, set, frozenset, dict)) else ""
    return f"a {type(value).__name__}{size}"


def _float(value: float, name: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{name} is a number of {value.bit_length()} bits") from None  # type: ignore[attr-defined]


def _outside(low: float, high: float | None) -> str:
    return f"below {number_text(low)}" if high is None else f"outside {number_text(low)} to {number_text(high)}"


def number_text(value: float) -> str:
    """A bound for an error's text: whole numbers with all their digits."""
    return str(int(value)) if float(value).is_integer() else f"{value:.12g}"


def _setting(
    default: Any,
    does: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A setting's field: what it does, its range or choices. ``secret``: left out of the repr."""
    metadata = {"does": does, "low": low, "high": high, "choices": choices}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True)
class _Settings:
    section: ClassVar[str] = ""
    named: ClassVar[bool] = False
    """Whether it has tables such as ``[queue.orders]`` too, for which its own settings are the defaults."""

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            object.__setattr__(self, spec.name, self._checked(spec, getattr(self, spec.name)))

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The given values, and those that follow from them where the default would not fit. Raises ConfigError."""
        return values

    def _checked(self, spec: dataclasses.Field[Any], value: Any) -> Any:
        name = f"{self.section}.{spec.name}"
        kind: type = type(spec.default)
        if not spec.repr and not isinstance(value, str):
            raise ConfigError(f"{name} is not text")
        if kind is bool:
            value = parse_bool(value, name)
        elif spec.name.endswith("_s"):
            value = parse_duration_s(value, name)
        elif kind in (int, float):
            value = parse_number(value, name, kind)
        else:
            value = check_text(value, name, secret=not spec.repr)
        low, high, choices = spec.metadata["low"], spec.metadata["high"], spec.metadata["choices"]
        if choices and value not in choices:
            raise ConfigError(f"{name} = {shown(value)} is not one of {', '.join(choices)}")
        # Written so that NaN, for which every comparison is false, is refused too.
        if low is not None and not low <= value <= high:
            raise ConfigError(f"{name} = {shown(value)} is {_outside(low, high)}")
        return value


_KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text", dict: "a table"}


def parse_bool(value: object, name: str) -> bool:
    """Returns a bool, from one or from text: 1, true, yes, on, 0, false, no, off. Raises ConfigError."""
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off"}:
        return False
    raise ConfigError(f"{name} = {shown(value)} is not true or false")


@dataclass(frozen=True)
class QueueSettings(_Settings):
    """Settings of one queue. They are stored with it, so that every process that opens the queue has the same; but
    ``max_message_bytes``, ``max_headers_bytes`` and ``strict`` are each process's own."""

    section: ClassVar[str] = "queue"
    named: ClassVar[bool] = True

    shards: int = _setting(32, "independent FIFO sequences; more allow more parallel claims", 1, 512)
    message_expiry_s: float = _setting(
        0,
        "a message that waited longer, also in the sideline, is dropped, counted, and a warning is logged; 0 = never; a new "
        "queue on Aerospike has 172,800 unless it is set",
        0,
        MAX_EXPIRY_S,
    )
    queue_expiry_s: float = _setting(
        172_800, "an unused queue is deactivated after this; at least message_expiry_s", 1, MAX_EXPIRY_S
    )
    stuck_after_s: float = _setting(
        1_200, "a claim that nobody renewed for this long counts as abandoned", LEAST_STUCK_AFTER_S, 18_000
    )
    durability: str = _setting(
        "sync",
        "sync survives a power cut; interval loses at most the store's interval; none leaves it to the OS",
        choices=("sync", "interval", "none"),
    )
    codec: str = _setting(
        "auto",
        "how bodies are encoded; auto: raw for bytes and str, json otherwise",
        choices=("auto", "raw", "json", "msgpack"),
    )
    max_message_bytes: int = _setting(
        1 << 20, 'largest encoded body that is published, and that a worker of pool="process" is given', 1, 16 << 20
    )
    max_headers_bytes: int = _setting(
        16 << 10, "largest headers of one message, encoded; every consumer has room for 64 KiB", 0, 64 << 10
    )
    strict: bool = _setting(
        True,
        "a message is read back before it is published, and refused when a consumer could not read it or would get another "
        "value; what JSON has no form for arrives as what stands for it, see docs/guarantees.md",
    )
    shovel_interval_s: float = _setting(
        600, "how often the sideline goes back to the main magazine; 0 = only by hand", 0, 86_400
    )
    shovel_concurrency: int = _setting(4, "parallel shovel workers", 1, 50)
    max_returns: int = _setting(
        5, "how often that schedule brings a failed message back before it waits for a person; 0 = never", 0, 65_535
    )
    shovel_retry: str = _setting(
        "",
        "by a policy instead: the name of one in [retries], or in code an ignis.Retry; each message comes back attempts - 1 "
        "times, behind growing waits, and max_returns does not count",
    )
    on_expiry: str = _setting(
        "drop",
        "where a message goes when its own deadline (expires_in) has passed: drop removes and counts it, sideline keeps it there "
        "with the reason expired; holds for what is published from now on",
        choices=("drop", "sideline"),
    )
    handler_type: str = _setting("", "name of the handler that runs it; default: the function's name")

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.message_expiry_s < 1:
            raise ConfigError(f"queue.message_expiry_s = {self.message_expiry_s:g} is neither 0 (never) nor at least 1")
        if self.queue_expiry_s < self.message_expiry_s:
            raise ConfigError(
                f"queue.queue_expiry_s = {self.queue_expiry_s:g} is below message_expiry_s = {self.message_expiry_s:g}: an "
                "unused queue would expire before its messages do; give a queue_expiry of at least "
                f"{self.message_expiry_s:g} s too"
            )


@dataclass(frozen=True)
class ConsumerSettings(_Settings):
    """Settings of a consumer: claiming, dispatching and acknowledging, per queue and process."""

    section: ClassVar[str] = "consumer"

    max_consumers: int = _setting(
        100, "upper limit of consumers per queue and process: threads, worker processes", 1, 1_000
    )
    max_coroutines: int = _setting(
        1_000,
        "the same for a handler that is a coroutine function, of which one event loop runs all of a queue",
        1,
        10_000,
    )
    max_running: int = _setting(
        0,
        "threads of one application that are in handlers at a time, over all its queues, in each process; 0 = as many as the "
        "queues' concurrency comes to",
        0,
        10_000,
    )
    initial_delay_s: float = _setting(0, "wait before the first claim", 0, 3_600)
    idle_poll_s: float = _setting(1.0, "longest wait between looks at an empty queue", 0.001, 1.0)
    spin_us: int = _setting(
        0,
        "how long a consumer polls an empty queue of the embedded store before it sleeps: a message is handled sooner, a core "
        "is busy; where others want that core it is handled later, above all with durability `sync`; coroutine handlers "
        "gain nothing, as their loop looks between its tasks",
        0,
        100_000,
    )
    chunk_target_s: float = _setting(0.02, "work handed to one worker at a time, by its measured speed", 0.0001, 10)
    max_chunk: int = _setting(1_024, "most messages handed to one worker at a time", 1, 65_535)
    max_claim: int = _setting(8_192, "most messages claimed in one call", 1, 1_000_000)
    max_unacked: int = _setting(
        16_384,
        "messages handled and not yet acknowledged at which it stops claiming; with two chunks for each worker, these are what "
        "a killed consumer may repeat",
        1,
        10_000_000,
    )
    max_in_flight_bytes: int = _setting(64 << 20, "most bytes claimed and not yet acknowledged", 1 << 16, 1 << 40)
    worker_start_timeout_s: float = _setting(60, "how long a worker process may take to import its handler", 0.1, 3_600)
    stop_timeout_s: float = _setting(30, "how long a graceful stop waits for running handlers", 0, 86_400)
    cancel_grace_s: float = _setting(
        10, "how long a worker process may go on with a message that was cancelled before it is killed", 0, 86_400
    )
    ack_linger_s: float = _setting(0.002, "how long acknowledgements gather before one transaction takes them", 0, 1)
    ack_retry_s: float = _setting(
        0.5, "wait before an acknowledgement that the store refused is tried again", 0.001, 60
    )


@dataclass(frozen=True)
class RetrySettings(_Settings):
    """A policy by which failed messages are tried again: ``[retries.NAME]``, for handlers with ``retry="NAME"``. What stands in
    ``[retries]`` itself holds for all of them. See retries.md."""

    section: ClassVar[str] = "retries"
    named: ClassVar[bool] = True

    attempts: int = _setting(
        8, "calls of the handler, the first included, before the message goes to the sideline", 1, 1_000
    )
    base_s: float = _setting(1.0, "wait behind the first failed attempt; in code base", 0, MAX_EXPIRY_S)
    factor: float = _setting(2.0, "each further wait is so many times as long", 1, 1_000)
    max_s: float = _setting(
        600,
        "the longest wait, at least base_s; where it is not given, a longer base_s counts instead; in code max",
        0,
        MAX_EXPIRY_S,
    )
    jitter: bool = _setting(True, "each wait is drawn between half of it and all of it")

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The longest wait is a longer ``base_s`` where only that is given: the default is nobody's wish."""
        if "base_s" not in values or "max_s" in values:
            return values
        return {**values, "max_s": max(parse_duration_s(values["base_s"], "retries.base_s"), cls.max_s)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_s < self.base_s:
            raise ConfigError(f"retries.max_s = {self.max_s:g} is below base_s = {self.base_s:g}")


@dataclass(frozen=True)
class PublisherSettings(_Settings):
    """Settings of the buffered publisher."""

    section: ClassVar[str] = "publisher"

    capacity: int = _setting(65_536, "ring slots: messages that may wait for the flusher; a power of two", 2, 1 << 24)
    linger_s: float = _setting(0, "how long the flusher lets a batch grow once it has a message", 0, 10)
    max_batch: int = _setting(16_384, "most messages in one store transaction", 1, 1 << 20)
    max_batch_bytes: int = _setting(16 << 20, "most bytes in one store transaction", 1 << 10, 64 << 20)
    loads_in_flight: int = _setting(4, "transactions on their way to a broker at a time; without a linger", 1, 16)
    send_timeout_s: float = _setting(30, "how long send() waits for room before it raises", 0, 86_400)
    close_timeout_s: float = _setting(60, "how long leaving the publisher waits for durability", 0, 86_400)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity & (self.capacity - 1):
            raise ConfigError(f"publisher.capacity = {self.capacity} is not a power of two")


@dataclass(frozen=True)
class SweeperSettings(_Settings):
    """Settings of the sweeper, of which one instance per store is active."""

    section: ClassVar[str] = "sweeper"

    interval_s: float = _setting(900, "time between passes", 0.1, 86_400)
    initial_delay_s: float = _setting(600, "wait before the first pass, from the last one of any process", 0, 86_400)
    batch: int = _setting(1_000, "most records moved in one transaction", 1, 100_000)
    parallel_queues: int = _setting(64, "queues swept at the same time", 1, 64)
    dead_owners: bool = _setting(
        True,
        "also recover what a provably dead process held, however young its claims; other processes with a consumer of the queue "
        "then do so within refresher.watch_s",
    )


@dataclass(frozen=True)
class RefresherSettings(_Settings):
    """Settings of the refresher, which follows on every instance what others change in the store."""

    section: ClassVar[str] = "refresher"

    interval_s: float = _setting(300, "time between looks at all queues of the store", 0.01, 86_400)
    initial_delay_s: float = _setting(60, "wait before the first such look", 0, 86_400)
    watch_s: float = _setting(
        5,
        "time between looks at the queues that this process runs, at who died holding messages of them, at new queues of a "
        "handler's pattern, and at whether those it publishes to still exist; 0 = only together with all queues",
        0,
        3_600,
    )


@dataclass(frozen=True)
class SchedulesSettings(_Settings):
    """Settings of the scheduler, of which one instance per store is active. See schedules.md."""

    section: ClassVar[str] = "schedules"

    look_s: float = _setting(
        10,
        "time within which the leader sees a change by another process, and within which another instance takes over; six "
        "times as long where no schedule is known",
        0.05,
        3_600,
    )
    grace_s: float = _setting(60, "a tick that is fired later counts as missed", 0, 3_600)
    max_made_up: int = _setting(
        100_000,
        "so many missed ticks of a schedule with missed = all are fired at most, the newest ones; of cron those of as many "
        "minutes, and of 366 days at least",
        1,
        1_000_000_000,
    )


@dataclass(frozen=True)
class TracingSettings(_Settings):
    """Settings of the traces of OpenTelemetry. What is sampled, and where spans go, its SDK is told. See tracing.md."""

    section: ClassVar[str] = "tracing"

    enabled: bool = _setting(
        False, "publishing and handling make spans, and messages carry their context; needs ignis-mq[otel]"
    )


@dataclass(frozen=True)
class LeaderSettings(_Settings):
    """Settings of the election: which instance runs what only one may run, above all the sweeper. See leader.md."""

    section: ClassVar[str] = "leader"

    kind: str = _setting(
        "auto",
        "how the leader is elected; auto: zookeeper where it is set, else file where all instances share a directory, else lease",
        choices=("auto", "file", "lease", "zookeeper"),
    )
    zookeeper: str = _setting(
        "", "zk://host:2181,host2:2181/chroot; user:password@ before the hosts for digest permissions", secret=True
    )
    refresh_s: float = _setting(30, "how often leadership and assignments are checked without a cause", 0.05, 3_600)
    lease_s: float = _setting(30, "lease: how long after the last sign of its holder it is free", 0.5, 3_600)
    session_timeout_s: float = _setting(
        10, "zookeeper: a silent instance is replaced after this; the server bounds it by its tickTime", 0.5, 300
    )
    instance: str = _setting("", "zookeeper: this instance's unique name; empty: host, pid and a random part")
    partitions: int = _setting(32, "zookeeper: shares that the leader deals out to all instances in turn", 0, 65_536)
    epoch_base: int = _setting(
        0, "zookeeper: added to every epoch; raise it when the servers lost their data", 0, 1 << 62
    )
    user: str = _setting("", "zookeeper: digest user; its nodes are then open to this user alone")
    password: str = _setting("", "zookeeper: digest password", secret=True)
    tls: bool = _setting(False, "zookeeper: connect with TLS")
    tls_cafile: str = _setting("", "zookeeper: PEM file of the authorities that the servers' certificates come from")
    tls_certfile: str = _setting("", "zookeeper: PEM file of this client's certificate")
    tls_keyfile: str = _setting("", "zookeeper: PEM file of its key")
    tls_check_hostname: bool = _setting(True, "zookeeper: the certificate must name the host that was connected to")


@dataclass(frozen=True)
class SupervisorSettings(_Settings):
    """Settings of the supervisor of worker processes."""

    section: ClassVar[str] = "supervisor"

    restart_wait_s: float = _setting(
        0.5, "wait before a process that died is replaced; doubled with each death", 0, 600
    )
    restart_wait_max_s: float = _setting(30, "the longest such wait", 0, 3_600)
    stable_after_s: float = _setting(60, "a process that ran this long begins the waits anew when it dies", 0, 86_400)
    start_timeout_s: float = _setting(120, "a process that does not consume after this long is killed", 1, 3_600)
    kill_after_s: float = _setting(10, "how long beyond its stop timeout a process may take to end", 0, 3_600)
    silent_after_s: float = _setting(
        30, "a process that reports nothing for this long is unhealthy, and another works beside it", 1, 3_600
    )
    silent_kill_after_s: float = _setting(
        300, "a process that reports nothing for this long is killed, and what it held given back; 0 = never", 0, 86_400
    )


@dataclass(frozen=True)
class AutoscalerSettings(_Settings):
    """Settings of the autoscaler, which computes the number of workers from the backlog."""

    section: ClassVar[str] = "autoscaler"

    min_workers: int = _setting(1, "fewest workers", 0, 10_000)
    max_workers: int = _setting(4, "most workers", 1, 10_000)
    messages_per_worker: int = _setting(1_000, "pending messages for which one more worker runs", 1, 1_000_000_000)
    max_age_s: float = _setting(
        60, "one more worker runs while the oldest message waits longer; 0 = age does not count", 0, 86_400
    )
    interval_s: float = _setting(5, "time between looks at the queues", 0.01, 3_600)
    cool_down_s: float = _setting(60, "how long workers are not needed before their number falls", 0, 86_400)
    command_timeout_s: float = _setting(60, "a command of `ignis autoscale` that takes longer is ended", 0.1, 3_600)
    scope: str = _setting("autoscaler", "scope of the leadership: of the autoscalers that share it, one acts")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_workers < self.min_workers:
            raise ConfigError(f"autoscaler.max_workers = {self.max_workers} is below min_workers = {self.min_workers}")


@dataclass(frozen=True)
class LockSettings(_Settings):
    """Settings of distributed locks."""

    section: ClassVar[str] = "locks"

    ttl_s: float = _setting(90, "how long a lock is held unless it is renewed or released", 0.001, MAX_EXPIRY_S)
    timeout_s: float = _setting(90, "how long acquire() waits for a lock that another owner holds", 0, 86_400)
    poll_s: float = _setting(1, "wait between two looks at a lock that another owner holds", 0.001, 60)
    tries: int = _setting(5, "how often a call is made before the store's error is raised", 1, 100)
    retry_wait_s: float = _setting(0.08, "wait between two tries", 0, 60)
    max_hold_s: float = _setting(
        3_600, "automatic renewal stops this long after the lock was acquired", 0.001, MAX_EXPIRY_S
    )


@dataclass(frozen=True)
class SparkSettings(_Settings):
    """Settings of the Spark stages, source and sink. The driver resolves them and gives the values to its tasks."""

    section: ClassVar[str] = "spark"

    batch_rows: int = _setting(16_384, "most rows in one store transaction of a publishing task", 1, 1 << 20)
    batch_bytes: int = _setting(
        8 << 20, "most bytes of bodies in one store transaction of a publishing task", 1 << 10, 64 << 20
    )
    read_bytes: int = _setting(4 << 20, "about how many bytes a draining task reads at a time", 1 << 10, 1 << 30)
    partition_rows: int = _setting(524_288, "most messages that one task drains", 1, 1 << 30)
    max_rows: int = _setting(1_000_000, "most messages claimed for one micro-batch of a stream", 1, 1 << 40)
    remember_ids_s: float = _setting(
        604_800, "how long the store remembers the ids of rows that were published with ids", 1, MAX_EXPIRY_S
    )


@dataclass(frozen=True)
class RelaySettings(_Settings):
    """Settings of the relay: the channels that producers make in its directory, and the process that empties them."""

    section: ClassVar[str] = "relay"

    capacity: int = _setting(16_384, "messages that one producer's channel holds; a power of two", 64, 1 << 20)
    bytes_per_message: int = _setting(
        512, "room in a channel for each message of up to 32 KiB, on average; a power of two", 64, 4_096
    )
    timeout_s: float = _setting(30, "how long publish() waits until the relay has stored the message", 0, 86_400)
    scan_s: float = _setting(0.25, "how often the relay looks for new channels and dead producers", 0.01, 60)
    nap_s: float = _setting(
        0.0005, "pause between two looks while messages come in; producers need not wake the relay then", 0, 1
    )
    max_batch: int = _setting(32_768, "most messages of one queue in one store transaction", 1, 1 << 20)
    max_batch_bytes: int = _setting(32 << 20, "most bytes of one queue in one store transaction", 1 << 10, 64 << 20)
    max_channels: int = _setting(4_096, "channels emptied at a time; further ones wait", 1, 100_000)
    retry_s: float = _setting(0.1, "wait after the store refused a batch; doubles up to max_retry_s", 0.001, 60)
    max_retry_s: float = _setting(5, "longest wait after the store refused a batch", 0.001, 3_600)
    stop_timeout_s: float = _setting(5, "how long a relay that is told to stop goes on storing what comes in", 0, 3_600)
    catalogue_s: float = _setting(
        2, "how often the queues' settings are written to a file for the producers", 0.05, 3_600
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("capacity", "bytes_per_message"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ConfigError(f"relay.{name} = {value} is not a power of two")


@dataclass(frozen=True)
class BrokerSettings(_Settings):
    """Settings of the broker: limits of its connections and of what it holds for them."""

    section: ClassVar[str] = "broker"

    max_frame_bytes: int = _setting(64 << 20, "largest frame after the handshake", 1 << 16, 1 << 30)
    max_pending: int = _setting(1_024, "requests of one connection that may wait for their answer", 1, 1_000_000)
    max_inbox_bytes: int = _setting(
        64 << 20, "bytes of one queue that may wait for the store; above it its senders are not read", 1 << 16, 1 << 36
    )
    max_outbound_bytes: int = _setting(
        8 << 20,
        "bytes of answers and deliveries that one connection may leave unread; above it the connection is not read",
        1 << 14,
        1 << 32,
    )
    max_receive_bytes: int = _setting(
        256 << 20,
        "memory of frames still arriving, over all connections, and of requests and messages that wait for the store; "
        "above it few are read",
        1 << 16,
        1 << 40,
    )
    frame_timeout_s: float = _setting(
        15, "time in which a frame that has begun must arrive, and as long again for every MiB of it", 0.05, 3_600
    )
    max_unread_bytes: int = _setting(
        256 << 20,
        "bytes of answers and deliveries that all connections may leave unread; above it each may leave little, above twice "
        "of it each user no more than an equal part",
        1 << 16,
        1 << 40,
    )
    max_connections: int = _setting(12_000, "connections at a time", 1, 1_000_000)
    max_connections_per_address: int = _setting(
        11_000, "connections of one address (of IPv6: of one /64 network) at a time", 1, 1_000_000
    )
    max_connections_per_user: int = _setting(
        0, "connections of one user at a time; 0 = a quarter of all that there is room for", 0, 1_000_000
    )
    max_unauthenticated: int = _setting(
        256, "connections that are not authenticated yet, counted from accept on", 1, 100_000
    )
    max_unauthenticated_per_address: int = _setting(
        128,
        "such connections of one address; when all places are taken the address with most of them loses its oldest",
        1,
        100_000,
    )
    reserved_files: int = _setting(
        256, "file descriptors that connections never get: they are for the store's files and logs", 16, 100_000
    )
    handshake_timeout_s: float = _setting(5, "time in which a connection must authenticate", 0.05, 300)
    idle_timeout_s: float = _setting(120, "a connection that sends nothing for this long is closed", 0.1, 86_400)
    write_timeout_s: float = _setting(
        30, "a connection that for this long reads nothing of what waits for it is closed", 0.1, 3_600
    )
    redeliver_after_s: float = _setting(
        2, "how long the messages of a lost connection wait for its client to come back", 0, 3_600
    )
    max_crashes: int = _setting(
        3, "a message held by this many connections that were lost goes to the sideline; 0 = never", 0, 65_535
    )
    drain_timeout_s: float = _setting(30, "how long a stop waits for pending answers", 0, 86_400)
    max_wait_s: float = _setting(30, "longest wait for messages in one request of a client", 0.1, 300)
    max_waiting_per_user: int = _setting(
        32_768,
        "requests of one user, without users of one address, that may wait for messages; delayed NACKs count by their runs of "
        "pointers",
        1,
        10_000_000,
    )
    max_credit: int = _setting(65_536, "most unacknowledged messages of one subscription", 1, 10_000_000)
    store_threads: int = _setting(8, "threads that call the store", 1, 256)
    spin_us: int = _setting(
        100,
        "how long the event loop looks for the next request before it sleeps, where the last ones came within that time and "
        "from another core; 0 = never",
        0,
        10_000,
    )
    max_applications: int = _setting(64, "applications (client_id and farm_id) served at a time", 1, 10_000)
    application_linger_s: float = _setting(
        60, "how long an application without connections is kept; less when max_applications is reached", 0.05, 86_400
    )
    watch_threads: int = _setting(
        32, "threads that wait for loads by other processes, one for a magazine; the others share one more", 1, 1_024
    )


@dataclass(frozen=True)
class ClientSettings(_Settings):
    """Settings of a client of the broker: ``ignis://`` and ``ignis.broker``."""

    section: ClassVar[str] = "client"

    timeout_s: float = _setting(30, "how long a request waits for its answer", 0.01, 86_400)
    connect_timeout_s: float = _setting(10, "how long a client tries to connect, or to connect again", 0.01, 3_600)
    retry_wait_s: float = _setting(0.05, "wait before the second attempt to connect; doubles with each", 0.001, 60)
    max_retry_wait_s: float = _setting(2, "longest wait between two attempts to connect", 0.001, 600)
    max_pending: int = _setting(1_024, "requests that may wait for their answer on one connection", 1, 1_000_000)
    max_frame_bytes: int = _setting(64 << 20, "largest frame that is accepted", 1 << 16, 1 << 30)


SECTIONS: tuple[type[_Settings], ...] = (
    QueueSettings, ConsumerSettings, RetrySettings, PublisherSettings, SweeperSettings, RefresherSettings,
    SchedulesSettings, LeaderSettings, SupervisorSettings, AutoscalerSettings, LockSettings, RelaySettings, BrokerSettings,
    ClientSettings, SparkSettings, TracingSettings,
)  # fmt: skip


_VARIABLES = frozenset({
    "IGNIS_URL", "IGNIS_CONFIG", "IGNIS_TOKEN", "IGNIS_BROKER_USERS",
    # those of the build and its scripts
    "IGNIS_PYTHON", "IGNIS_SANITIZE", "IGNIS_COVERAGE", "IGNIS_WERROR", "IGNIS_DEBUG", "IGNIS_SYSTEM_PACKAGES",
})  # fmt: skip
_FOREIGN_VARIABLE = re.compile(
    # Those of the project's own programs, and those that Kubernetes and Docker set for a service named ignis.
    r"IGNIS_(?:TEST|BENCH|TORTURE|DEMO)_"
    r"|IGNIS_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP)(?:_(?:PROTO|PORT|ADDR))?)?)\Z"
)


APPLICATION = ("client_id", "farm_id")
APPLICATION_HINT = (
    "the name of an application stands in its code, Ignis(url, client_id=..., farm_id=...), and commands take --client-id and "
    "--farm-id"
)
_APPLICATION_VARIABLES = ("IGNIS_CLIENT_ID", "IGNIS_FARM_ID", "IGNIS_CLIENT_CLIENT_ID", "IGNIS_CLIENT_FARM_ID")


def check_variables(environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a variable that is meant to be a setting and names none; else it would be ignored silently.

    A variable is meant as a setting when it begins with ``IGNIS_`` and a section, or resembles the name of a setting. Other
    variables that begin with ``IGNIS_`` are logged.
    """
    given = [name for name in environ if name.startswith("IGNIS_") and name not in _VARIABLES]
    if not given:
        return
    known = set(_VARIABLES)
    for cls in SECTIONS:
        for spec in dataclasses.fields(cls):
            known |= {f"IGNIS_{cls.section}_{one}".upper() for one in (spec.name, spec.name.removesuffix("_s"))}
    sections = tuple(f"IGNIS_{cls.section}_".upper() for cls in SECTIONS)
    for name in sorted(given):
        if name in known or _FOREIGN_VARIABLE.match(name) is not None:
            continue
        if name in _APPLICATION_VARIABLES:
            raise ConfigError(f"the environment has {name}, which names no setting: {APPLICATION_HINT}")
        near = near_name(name, known, "IGNIS_")
        if near is not None:
            raise ConfigError(f"the environment has {name}, which names no setting; is {near} meant?")
        if name.startswith(sections):
            raise ConfigError(f"the environment has {name}, which names no setting; docs/settings.md lists them")
        if name not in _seen_variables:
            _seen_variables.add(name)
            log.warning(event_text("unknown_variable", "the environment has %s, which names no setting of ignis"), name)


_seen_variables: set[str] = set()


def load_file(path: str | os.PathLike[str] | None, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the parsed settings file; ``{}`` when neither ``path`` nor ``IGNIS_CONFIG`` names one. Raises ConfigError, also
    for a misspelt variable of the environment."""
    environ = os.environ if environ is None else environ
    check_variables(environ)
    given = path
    chosen = environ.get("IGNIS_CONFIG") if path is None or path == "" else path
    if chosen is None or chosen == "":
        return {}
    try:
        path = Path(chosen)
    except TypeError:
        raise ConfigError(f"settings file {shown(chosen)} is not a path") from None
    where = f"settings file {masked(str(path).encode('utf-8', 'backslashreplace').decode())}"
    if given is None or given == "":
        where += " (environment variable IGNIS_CONFIG)"
    try:
        data: dict[str, Any] = tomllib.loads(read_text(path))
    except OSError as exc:
        raise ConfigError(
            f"{where}: {exc.strerror}"
        ) from None  # the cause shows the path, which may be a URL by mistake
    except ValueError as exc:  # not TOML, not UTF-8, or not a path
        raise ConfigError(f"{where}: {exc}") from exc
    known = {cls.section for cls in SECTIONS} | {"url"}
    for section, value in data.items():
        if section in APPLICATION:
            raise ConfigError(f"{where}: {section} is no setting: {APPLICATION_HINT}")
        if section not in known:
            raise ConfigError(
                f"{where}: unknown section [{section}]; {meant(section, known)}known: {', '.join(sorted(known))}"
            )
        wanted = str if section == "url" else dict
        if not isinstance(value, wanted):
            # A table or text may contain a secret, so only its type is shown.
            said = value if isinstance(value, (int, float)) else type(value).__name__
            raise ConfigError(f"{where}: {section} = {said} is not {_KINDS[wanted]}")
    return data


def check_file(path: str | os.PathLike[str], what: str) -> None:
    """Raises ConfigError when a file that a library is going to open is missing or not a regular file."""
    try:
        check_regular(path)
    except OSError as exc:
        raise ConfigError(f"{what} {os.fspath(path)}: {exc.strerror}") from exc


def check_sections(file: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError for any setting of the parsed file or the environment that is unknown or has a bad value.

    A program calls it at its start, so that a misspelling in a section that it uses later is found at once.
    """
    for cls in SECTIONS:
        resolve(cls, {}, file, environ=environ)
        for name, own in file.get(cls.section, {}).items() if cls.named else ():
            if isinstance(own, Mapping):
                resolve(cls, {}, file, name=name, environ=environ)


def resolve(
    cls: type[T],
    arguments: Mapping[str, Any],
    file: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    stored: Mapping[str, Any] | None = None,
) -> T:
    """Builds a component's settings: argument > environment > file (``[section.name]`` over ``[section]``) > stored > default.

    ``stored`` has the settings of a queue that the store knows. Arguments whose value is None count as not given.
    Raises ConfigError for an unknown name or a bad value; it names the variable, or the part of the file, that has it.
    """
    values, sources = _given(cls, arguments, file, name, environ)
    try:
        return cls(**cls.completed({**(stored or {}), **values}))
    except ConfigError as exc:
        told = re.findall(r"[a-z_]+", str(exc))
        found = list(dict.fromkeys(sources[one] for one in told if one in sources))
        if not found:
            raise
        raise ConfigError(f"{exc} ({', '.join(found)})") from None


def given_names(
    cls: type[_Settings],
    arguments: Mapping[str, Any],
    file: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
) -> set[str]:
    """Returns the names of settings that are given by argument, environment or file, even if with their default values."""
    return set(_given(cls, arguments, file, name, None)[0])


def _given(
    cls: type[_Settings],
    arguments: Mapping[str, Any],
    file: Mapping[str, Any] | None,
    name: str | None,
    environ: Mapping[str, str] | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the given values, and for those that no argument gave, where each comes from."""
    environ = os.environ if environ is None else environ
    if file is not None and not isinstance(file, Mapping):
        raise ConfigError(f"file = {shown(file)} is not a parsed settings file")
    names = {spec.name for spec in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    table = dict((file or {}).get(cls.section, {}))
    own = {key: value for key, value in table.items() if isinstance(value, Mapping)} if cls.named else {}
    shared = {key: value for key, value in table.items() if key not in own}
    _merge(cls, names, values, shared, f"settings file, [{cls.section}]")
    if name is not None and name in own:
        _merge(cls, names, values, own[name], f"settings file, [{cls.section}.{name}]")
        sources.update(dict.fromkeys(values, f"settings file, [{cls.section}] or [{cls.section}.{name}]"))
    else:
        sources.update(dict.fromkeys(values, f"settings file, [{cls.section}]"))
    for field_name in names:
        # The shorter name first: where both are set, the exact one holds.
        for spelling in (field_name.removesuffix("_s"), field_name):
            variable = f"IGNIS_{cls.section}_{spelling}".upper()
            if variable in environ:
                values[field_name] = environ[variable]
                sources[field_name] = f"environment variable {variable}"
    chosen: dict[str, Any] = {}
    _merge(cls, names, chosen, {key: value for key, value in arguments.items() if value is not None}, "argument")
    return {**values, **chosen}, {key: source for key, source in sources.items() if key not in chosen}


def url_named(given: str | None, file: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the store's URL by argument > ``IGNIS_URL`` > file, and its source if it is no argument; both may be empty."""
    if given:
        return given, ""
    if url := os.environ.get("IGNIS_URL"):
        return url, "environment variable IGNIS_URL"
    return str(file.get("url") or ""), "settings file"


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Adds the URL's source to a ConfigError that is raised inside; an empty source is the caller's own argument."""
    try:
        yield
    except ConfigError as exc:
        raise (ConfigError(f"{exc} (the URL is from: {source})") if source else exc) from None


_SHORTER = "; the _s at an end may be left out"


def _merge(cls: type[_Settings], names: set[str], into: dict[str, Any], given: Mapping[str, Any], source: str) -> None:
    spelled: dict[str, str] = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise ConfigError(f"{cls.section} setting {shown(key)} ({source}) is not text")
        known = key if key in names else f"{key}_s"
        if known not in names:
            if key in APPLICATION:
                raise ConfigError(f"{cls.section} setting {key!r} ({source}) is none: {APPLICATION_HINT}")
            spellings = names | {one.removesuffix("_s") for one in names}
            raise ConfigError(
                f"unknown {cls.section} setting {shown(key)} ({source}); {meant(key, spellings)}known: {', '.join(sorted(names))}"
                f"{_SHORTER if any(one.endswith('_s') for one in names) else ''}"
            )
        if known in spelled:
            raise ConfigError(
                f"{cls.section} setting {known} is given twice ({source}), as {spelled[known]} and as {key}"
            )
        spelled[known] = key
        into[known] = value
