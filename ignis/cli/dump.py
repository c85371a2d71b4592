"""``ignis dump`` and ``ignis load``: queues as lines of JSON, out of one store and into another."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import click

from ignis.cli import exit_codes, output
from ignis.cli.queue_names import complete_queue
from ignis.cli.state import State, common_options, counted, pass_state, queue_record
from ignis.config import parse_duration_s
from ignis.dump.lines import PLACES, BadLineError, Place
from ignis.dump.reading import Loaded, Loader
from ignis.dump.writing import Dumped, dump_queues
from ignis.errors import ConfigError, IgnisError
from ignis.private_files import open_private
from ignis.regular_files import regular_only

__all__ = ["dump", "load"]

_PIECE_BYTES = 64 << 10
_STEP = 1_000
_LINE_BYTES = 256 << 20
"""Longer than any line of a dump: a message has 16 MiB, and a byte takes at most six."""


class FileError(IgnisError, OSError):
    """A file that was opened cannot be written any more."""

    code = "file"


# -- dump


@click.command(short_help="Writes the messages of queues as lines of JSON.")
@click.argument("queues", metavar="QUEUE...", nargs=-1, shell_complete=complete_queue)
@click.option("--all", "everything", is_flag=True, help="Every queue, also the inactive ones.")
@click.option(
    "--magazine",
    "places",
    multiple=True,
    type=click.Choice(PLACES),
    help="Only what waits (main), is delayed (later), or failed (sideline); may be given often.  [default: all three]",
)
@click.option(
    "-o", "--out", default="-", metavar="FILE", help="A file that is not there yet; - is stdout.  [default: -]"
)
@common_options
@pass_state
def dump(state: State, queues: tuple[str, ...], everything: bool, places: tuple[Place, ...], out: str) -> int:
    """Writes the messages of QUEUE..., one JSON object a line, for `ignis load`. Nothing is claimed, changed or removed.

    While others use a queue it is no picture of one moment: what moves meanwhile may be there twice or not at all, and the
    command says so. Stop workers and publishers first where every message counts. What is claimed is dumped as well.

    Ends with 1 when a record is damaged: the others are dumped.
    """
    if bool(queues) == everything:
        raise click.UsageError("give the names of queues, or --all")
    done = Dumped()
    wanted = [place for place in PLACES if place in places] if places else PLACES
    with state.store() as store:
        found = store.queues.list() if everything else [queue_record(store, name) for name in dict.fromkeys(queues)]
        with _output(out) as file, _interruptible() as interrupted, counted(state, "dumping") as progress:
            writer = _Writer(file)
            try:
                for line in dump_queues(store, found, wanted, done):
                    writer.write(output.to_json(line).encode())
                    if writer.lines % _STEP == 0:
                        progress(_STEP)
                    if interrupted():
                        raise KeyboardInterrupt
            finally:
                writer.flush()  # whole lines, whatever ended it
    _report_dump(state, done, len(found), out)
    return exit_codes.ERROR if done.corrupt else exit_codes.OK


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self.lines = 0
        self._file = file
        self._held: list[bytes] = []
        self._bytes = 0

    def write(self, line: bytes) -> None:
        self._held.append(line + b"\n")
        self._bytes += len(line)
        self.lines += 1
        if self._bytes >= _PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        held, self._held, self._bytes = self._held, [], 0
        self._file.write(b"".join(held))
        self._file.flush()


@contextlib.contextmanager
def _output(path: str) -> Iterator[BinaryIO]:
    """stdout, or a new file, which is on the disk when it is left. Raises ConfigError: it cannot be made; FileError later."""
    if path == "-":
        yield sys.stdout.buffer
        return
    try:
        # Messages are nobody's business but this user's, and an older dump is not to be lost by a slip.
        file = open(path, "xb", opener=open_private)  # noqa: SIM115 - closed below, with what may go wrong there
    except FileExistsError:
        raise ConfigError(f"{path} is there already; remove it first, or give another --out") from None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be made: {exc.strerror or exc}") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        if isinstance(exc, IgnisError):
            raise
        raise FileError(f"{path} cannot be written: {exc.strerror or exc}") from exc


@contextlib.contextmanager
def _interruptible() -> Iterator[Any]:
    """Whether SIGINT or SIGTERM has come is asked between two lines. The second one ends the process as ever."""
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True
        for one, before in kept.items():
            signal.signal(one, before)

    kept: dict[int, Any] = {}
    for asked in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not the main thread, in which alone signals are handled
            kept[asked] = signal.signal(asked, note)
    try:
        yield lambda: came
    finally:
        for one, before in kept.items():
            signal.signal(one, before)


def _report_dump(state: State, done: Dumped, queues: int, out: str) -> None:
    if state.json and out != "-":
        output.document(
            {"queues": queues, "messages": done.messages, "corrupt": done.corrupt, "changed": done.changed, "file": out}
        )
        return
    if done.changed:
        names = ", ".join(done.changed[:10])
        output.warning(
            f"others used {names} meanwhile: messages that moved may be in the dump twice or not at all; stop workers and "
            "publishers for a dump that has each one once"
        )
    if done.corrupt:
        output.warning(f"{done.corrupt:,} damaged record(s) are left out; see 'ignis peek' and 'ignis doctor'")
    if not state.json:
        output.remark(f"dumped {done.messages:,} message(s) of {queues:,} queue(s)")


# -- load


def _remember(context: click.Context, parameter: click.Parameter, value: str) -> float:
    seconds = parse_duration_s(value, "--remember")
    if not seconds > 0:
        raise click.BadParameter(f"{value!r} is not above 0")
    return seconds


@click.command(short_help="Loads what `ignis dump` wrote.")
@click.argument("file", metavar="[FILE|-]", default="-")
@click.option("--skip-bad", is_flag=True, help="Count lines that cannot be loaded, and go on.")
@click.option(
    "--from-line", type=click.IntRange(min=1), default=1, metavar="N", help="Pass over the messages of earlier lines."
)
@click.option(
    "--remember",
    "remember_s",
    default="1d",
    show_default=True,
    callback=_remember,
    metavar="DURATION",
    help="How long the store is to know the ids of what was loaded: so long the command may be repeated.",
)
@common_options
@pass_state
def load(state: State, file: str, skip_bad: bool, from_line: int, remember_s: float) -> int:
    """Loads what `ignis dump` wrote, from FILE or stdin; when it ends with 0, all of it is durable.

    Makes the store and queues that do not exist, with the settings in the dump. Repeated within --remember, after an
    interruption say, it stores each message once: on memory, embedded and brokers before them. On Aerospike what was loaded is
    loaded again; --from-line goes on behind what an error says is stored.

    Ends with 1 at a line that cannot be loaded (what came before it is stored), and for a dump without its last line.
    """
    state.log_to_stderr("error")
    with state.app(create=True) as app, _input(file) as source:
        store = app.store
        if not store.magazines.tells_repeats:
            output.warning(
                "this store does not tell what was loaded before: a load that is repeated stores messages twice"
            )
        with counted(state, "loading") as progress:
            loader = Loader(store, remember_s=remember_s, skip_bad=skip_bad, from_line=from_line, progress=progress)
            try:
                loader.load(_lines(source))
            except BaseException:
                _report_load(state, loader.done, ended=True)
                raise
    _report_load(state, loader.done)
    return _complaint(loader.done)


@contextlib.contextmanager
def _input(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb", opener=regular_only)  # noqa: SIM115 - closed below
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror or exc}") from None
    with file:
        yield file


def _lines(source: BinaryIO) -> Iterator[bytes]:
    while line := source.readline(_LINE_BYTES):
        if len(line) == _LINE_BYTES:
            raise BadLineError(f"a line is longer than {_LINE_BYTES >> 20} MiB: that is no dump")
        yield line.rstrip(b"\r\n")


def _complaint(done: Loaded) -> int:
    """Of what was loaded without an error, and is not what was dumped."""
    if not done.whole:
        output.warning("the dump has no last line: it was cut short, and what was behind its end is not loaded")
        return exit_codes.ERROR
    if done.stated > done.read:
        output.warning(
            f"the dump says that it has {done.stated:,} message(s), and has {done.read:,}: lines of it are missing or bad"
        )
        return exit_codes.ERROR
    if done.changed:
        names = ", ".join(done.changed[:10])
        output.warning(f"others used {names} while the dump was made: messages may be missing in it")
    return exit_codes.ERROR if done.bad else exit_codes.OK


def _report_load(state: State, done: Loaded, *, ended: bool = False) -> None:
    for one in done.first_bad:
        output.warning(one)
    if state.json:
        names = ("loaded", "repeats", "expired", "bad", "line", "whole", "made", "changed")
        output.document({name: getattr(done, name) for name in names})
        return
    more = "".join(
        f", {count:,} {what}"
        for count, what in (
            (done.repeats, "were there already"),
            (done.expired, "of them past their time to live"),
            (done.bad, "bad line(s) skipped"),
        )
        if count
    )
    made = f"; made {', '.join(done.made)}" if done.made else ""
    output.line(f"loaded {done.loaded:,} message(s){more}{made}")
    if ended:
        output.remark(f"everything up to line {done.line:,} is stored")
