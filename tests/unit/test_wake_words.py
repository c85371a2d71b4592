"""Words by which processes of one machine wake each other for a store whose server tells nobody of a load."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ignis.errors import ClosedError, ConfigError, ForkedHandleError
from ignis.storage.aerospike import waits, wake_words
from ignis.storage.aerospike.options import AerospikeOptions
from ignis.storage.aerospike.waits import LONGEST_PAUSE_S, Waits, _Bell
from ignis.storage.aerospike.wake_words import AUTO, MAGAZINES, SHARDS, WakeWords
from tests.support import WAIT_S, eventually

FOREVER_S = 1e6
Open = Callable[..., WakeWords]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "wake"


@pytest.fixture
def opened(place: Path) -> Iterator[Open]:
    """Words as another process, or another store of this one, opens them."""
    made: list[WakeWords] = []

    def open_words(directory: str | None = None, scope: str = "test") -> WakeWords:
        made.append(WakeWords(str(place) if directory is None else directory, scope))
        return made[-1]

    wake_words._said.clear()
    yield open_words
    for one in made:
        one.close()


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks unless he is woken."""
    monkeypatch.setattr(waits, "LONGEST_PAUSE_S", FOREVER_S)
    monkeypatch.setattr(waits, "MOST_LOOK_MS", FOREVER_S * 1_000)
    monkeypatch.setattr(waits, "LOOK_MS", FOREVER_S * 1_000)
    monkeypatch.setattr(_Bell, "spacing_s", lambda self: 0.0)
    monkeypatch.setattr(_Bell, "pause_s", lambda self: FOREVER_S)


def asked_nobody(magazine: str) -> bool:
    raise AssertionError(f"the server was asked about {magazine}")


# -- the file


def test_what_one_raises_the_other_sees(opened: Open, place: Path) -> None:
    one, other = opened(), opened()
    index = one.index("orders")
    seen = one.sequence(index)
    other.notify(other.index("orders"))
    assert one.sequence(index) == seen + 1
    assert (place.stat().st_mode & 0o777, (place / wake_words._FILE).stat().st_mode & 0o777) == (0o700, 0o600)


def test_magazines_of_other_scopes_have_other_words(opened: Open) -> None:
    here, there = opened(), opened(scope="test\0other_data_set")
    names = [f"q{number}" for number in range(200)]
    assert sum(here.index(name) == there.index(name) for name in names) < 5
    assert len({here.index(name) for name in names}) > 190
    assert all(0 <= here.index(name) < MAGAZINES for name in names)


def test_each_shard_has_a_word_that_nobody_sleeps_on(opened: Open) -> None:
    words = opened()
    indices = words.shard_indices("orders", 512)
    assert len(set(indices)) == 512
    assert all(MAGAZINES <= index < MAGAZINES + SHARDS for index in indices)
    assert words.shard_indices("orders", 3) == indices[:3]
    words.notify(*indices)
    assert words.sequences(indices) == [1] * 512


def test_the_default_is_private_to_the_user() -> None:
    assert AerospikeOptions.of({}).wake_dir == AUTO
    assert wake_words.default_directory() in ("", f"/dev/shm/ignis-wake-{os.geteuid()}")


def test_empty_is_off(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    one, other = opened(""), opened("")
    other.notify(0)
    assert (one.path, one.sequence(0), other.sequence(0)) == (None, 0, 1)
    assert not caplog.records


def test_a_relative_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="wake_dir = 'here' is neither an absolute path nor auto"):
        AerospikeOptions.of({"wake_dir": "here"})


def _open_to_others(place: Path) -> str:
    place.mkdir()
    place.chmod(0o750)
    return "has mode 750; it must be 700"


def _a_link(place: Path) -> str:
    (place.parent / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(place.parent / "elsewhere")
    return "is not a directory"


def _a_file(place: Path) -> str:
    place.write_text("")
    return "is not a directory"


def _no_parent(place: Path) -> str:
    place.parent.rmdir()
    return "No such file"


def _other_content(place: Path) -> str:
    place.mkdir(mode=0o700)
    (place / wake_words._FILE).write_bytes(b"x" * 100_000)
    return "wake-words"


def _cut(place: Path) -> str:
    WakeWords(str(place), "test").close()
    os.truncate(place / wake_words._FILE, 4_096)
    return "wake-words"


def _file_open_to_others(place: Path) -> str:
    WakeWords(str(place), "test").close()
    (place / wake_words._FILE).chmod(0o666)
    return "has mode 666; it must belong to"


@pytest.mark.parametrize(
    "spoil", [_open_to_others, _a_link, _a_file, _no_parent, _other_content, _cut, _file_open_to_others]
)
def test_what_cannot_be_used_is_said_once_and_done_without(
    opened: Open, place: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], str]
) -> None:
    why = spoil(place)
    with caplog.at_level(logging.WARNING):
        words = [opened() for _ in range(3)]
    assert [one.path for one in words] == [None] * 3
    (said,) = caplog.messages
    assert why in said and str(place) in said
    words[0].notify(3)
    assert [one.sequence(3) for one in words] == [1, 0, 0], "each has its own"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("what", ["", wake_words._FILE])
def test_what_belongs_to_another_user_is_refused(
    opened: Open, place: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    opened()
    os.chown(place / what, 4_711, -1)
    assert opened().path is None
    assert "belongs to user 4711" in caplog.text


def test_a_file_that_is_cut_under_way_is_done_without(
    opened: Open, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = opened()
    os.truncate(place / wake_words._FILE, 0)
    index = words.index("orders")
    words.notify(index)
    seen = words.sequence(index)
    words.notify(index)
    assert words.wait(index, seen, WAIT_S) == seen + 1
    assert words.path is None
    assert len(caplog.messages) == 1


def test_a_file_that_was_removed_is_made_again(opened: Open, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some systems do with all that a user has left when he logs out."""
    old = opened()
    (place / wake_words._FILE).unlink()
    place.rmdir()
    new = opened()
    index = old.index("orders")
    seen = new.sequence(index)
    old._look_at = 0.0
    old.notify(index)
    assert new.sequence(index) == seen + 1


def test_a_child_is_refused(opened: Open) -> None:
    words = opened()
    pid = os.fork()
    if pid == 0:
        try:
            words.notify(0)
        except ForkedHandleError:
            os._exit(17)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    words.notify(0)


# -- waiting


@pytest.mark.usefixtures("never")
def test_another_process_wakes_a_sleeper(opened: Open, place: Path) -> None:
    bells = Waits(asked_nobody, opened())
    seen = bells.wait("orders", -1, 0)
    script = (
        "import sys; from ignis.storage.aerospike.wake_words import WakeWords; words = WakeWords(sys.argv[1], 'test');"
        "sys.stdin.readline(); words.notify(words.index('orders'))"
    )
    with (
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen([sys.executable, "-c", script, str(place)], stdin=subprocess.PIPE) as child,
    ):
        sleeping = pool.submit(bells.idle, "orders", seen, WAIT_S, 0.0)
        eventually(lambda: bells._bell("orders").sleepers, "it sleeps")
        child.communicate(b"\n", WAIT_S)
        assert sleeping.result(2 * WAIT_S) == seen + 1


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("way", ["idle", "wait"])
def test_a_load_between_the_look_and_the_sleep_is_not_lost(opened: Open, way: str) -> None:
    here, there = Waits(asked_nobody, opened()), Waits(asked_nobody, opened())
    seen = here.wait("orders", -1, 0)
    there.ring("orders", [0])  # the look has brought nothing, and this comes right after it
    after = here.idle("orders", seen, WAIT_S, 0.0) if way == "idle" else here.wait("orders", seen, WAIT_S)
    assert after == seen + 1


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("way", ["idle", "wait"])
def test_all_threads_that_wait_are_woken_by_another_store(opened: Open, way: str) -> None:
    here, there = Waits(asked_nobody, opened()), Waits(asked_nobody, opened())
    seen = here.wait("orders", -1, 0)
    with ThreadPoolExecutor(4) as pool:
        if way == "idle":
            waiting = [pool.submit(here.idle, "orders", seen, WAIT_S, 0.0) for _ in range(4)]
        else:
            waiting = [pool.submit(here.wait, "orders", seen, WAIT_S) for _ in range(4)]
        eventually(lambda: here._bell("orders").sleepers == (4 if way == "idle" else 1), "they sleep")
        there.ring("orders", [0])
        assert [one.result(2 * WAIT_S) for one in waiting] == [seen + 1] * 4


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("way", ["idle", "wait"])
def test_closing_ends_a_sleep(opened: Open, way: str) -> None:
    bells = Waits(asked_nobody, opened())
    seen = bells.wait("orders", -1, 0)
    with ThreadPoolExecutor(1) as pool:
        if way == "idle":
            sleeping = pool.submit(bells.idle, "orders", seen, WAIT_S, 0.0)
        else:
            sleeping = pool.submit(bells.wait, "orders", seen, WAIT_S)
        eventually(lambda: bells._bell("orders").sleepers, "it sleeps")
        bells.close()
        with pytest.raises(ClosedError):
            sleeping.result(2 * WAIT_S)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("closed", [False, True])
def test_who_is_to_stop_does_not_sit_out_the_pause_after_a_wake(
    opened: Open, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    bells = Waits(asked_nobody, opened())
    paced = threading.Event()

    def spacing_s(bell: _Bell) -> float:
        paced.set()
        return FOREVER_S

    monkeypatch.setattr(_Bell, "spacing_s", spacing_s)
    seen = bells.wait("orders", -1, 0)
    bells.ring("orders", [0])
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(bells.idle, "orders", seen, FOREVER_S, 0.0)
        assert paced.wait(WAIT_S)
        if closed:
            bells.close()
            with pytest.raises(ClosedError):
                sleeping.result(WAIT_S)
        else:
            bells.wake("orders")
            sleeping.result(WAIT_S)


def test_what_asking_finds_wakes_this_process_alone(opened: Open) -> None:
    asked: list[str] = []

    def pending(magazine: str) -> bool:
        asked.append(magazine)
        return True

    here, there = Waits(pending, opened()), Waits(asked_nobody, opened())
    seen = here.wait("orders", -1, 0), there.wait("orders", -1, 0)
    assert here.wait("orders", seen[0], WAIT_S) == seen[0] + 1
    assert asked == ["orders"]
    assert there.wait("orders", -1, 0) == seen[1]
    assert here.wait("orders", -1, 0) == seen[0] + 1


# -- how often it is looked


@pytest.mark.parametrize(
    ("rate", "most"), [(20, 1.5), (100, 1.5), (140, 1.2), (300, 0.72), (1_000, 0.3), (10_000, 0.065)]
)
def test_looks_a_message_when_each_is_announced(rate: int, most: float) -> None:
    """Messages come whenever they like: after a look and its spacing one is there already, or it is waited for."""
    bell = _Bell()
    bell.gap_s = 1 / rate
    spacing, gap = bell.spacing_s(), bell.gap_s
    cycle = spacing + gap * 2.718281828 ** (-spacing / gap)
    assert 1.1 * gap / cycle <= most


def test_nobody_waits_after_a_wake_where_few_come() -> None:
    bell = _Bell()
    bell.gap_s = 0.01
    assert bell.spacing_s() == 0.0


def test_wakes_that_bring_nothing_are_answered_ever_later() -> None:
    """Another magazine may have the same word: at last it is looked as often as if nobody woke."""
    bell = _Bell()
    bell.gap_s = 0.01
    bell.quiet_since -= 60
    spacings = []
    for _ in range(20):
        bell.waited(True, [])
        bell.missed()
        spacings.append(bell.spacing_s())
    assert spacings == sorted(spacings)
    assert spacings[0] == 0.001
    assert spacings[-1] == LONGEST_PAUSE_S
    bell.came(1, {})
    assert bell.fruitless == 0


def test_a_silent_word_is_believed_again() -> None:
    bell = _Bell()
    bell.waited(True, [])
    bell.missed()
    assert bell.fruitless == 1
    bell.waited(False, [])
    bell.missed()
    assert bell.fruitless == 0


# -- what was announced


class Machine:
    """A consumer of four shards that looks after each load; `load` announces unless it is another machine's."""

    def __init__(self, opened: Open) -> None:
        self.here, self.there = Waits(asked_nobody, opened()), Waits(asked_nobody, opened())
        self.bell = self.here._bell("orders")
        self.seen = 0
        self.turn({})

    def turn(self, claimed: dict[int, int], *, late: bool = False, more: bool = False) -> list[int] | None:
        """One look, which claims this. ``late``: their producer raises the words after that."""
        self.seen = self.here.wait("orders", -1, 0)
        look = self.here.look("orders", 4, whole=False)
        self.here.fired("orders", claimed, look, more=more)
        if late:
            self.there.ring("orders", claimed)
        return look.shards

    def load(self, *shards: int) -> None:
        self.there.ring("orders", shards)
        self.idle()

    def idle(self) -> None:
        self.here.idle("orders", self.seen, 0.0, 0.0)

    def trust(self) -> None:
        for number in range(40):
            self.load(number % 4)
            self.turn({number % 4: 1})
        assert self.bell.told >= waits._TRUSTED


@pytest.fixture
def machine(opened: Open, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(waits, "_LONGEST_TRUST_S", FOREVER_S)
    monkeypatch.setattr(waits, "_GAPS", FOREVER_S)
    return Machine(opened)


def test_all_shards_are_looked_at_until_the_words_are_trusted(machine: Machine) -> None:
    for _ in range(waits._TRUSTED):
        machine.load(2)
        assert machine.turn({2: 1}) is None
    machine.load(2)
    assert machine.turn({2: 1}) == [2]
    machine.load(1, 3)
    assert machine.turn({1: 1, 3: 1}) == [1, 3]


def test_a_look_that_nobody_asked_for_is_into_all_shards(machine: Machine) -> None:
    machine.trust()
    machine.idle()
    assert machine.turn({}) is None


def test_a_wake_that_names_no_shard_is_a_look_into_all(machine: Machine) -> None:
    machine.trust()
    machine.load()
    assert machine.turn({}) is None


def test_all_shards_are_looked_at_now_and_then(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.trust()
    monkeypatch.setattr(waits, "_LONGEST_TRUST_S", 0.0)
    machine.load(2)
    assert machine.turn({2: 1}) is None


@pytest.mark.parametrize("late", [False, True], ids=["raised before the claim", "raised after the claim"])
def test_words_that_announce_what_is_claimed_are_trusted(machine: Machine, late: bool) -> None:
    for _ in range(waits._TRUSTED):
        assert machine.bell.trusted_until() == 0.0
        if not late:
            machine.load(1)
        machine.turn({1: 1}, late=late)
        if late:
            machine.idle()
    assert machine.bell.trusted_until() > machine.bell.claimed_at


def test_one_load_that_was_not_announced_ends_the_trust(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came from another machine, and so may the next."""
    machine.trust()
    machine.idle()
    machine.turn({3: 1})
    assert machine.bell.trusted_until() > 0.0, "it may be announced yet"
    monkeypatch.setattr(waits, "_LATE_S", 0.0)
    machine.idle()
    assert machine.bell.trusted_until() == 0.0
    machine.load(2)
    assert machine.turn({2: 1}) is None


def test_one_load_of_another_machine_among_many_of_this_one_ends_the_trust(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The magazine's word moves all the time; that of the shard tells."""
    machine.trust()
    monkeypatch.setattr(waits, "_LATE_S", 0.0)
    machine.load()
    machine.turn({0: 1, 3: 1})
    machine.load(0)
    assert machine.bell.told == 0


def test_what_was_left_behind_needs_no_second_word(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.trust()
    monkeypatch.setattr(waits, "_LATE_S", 0.0)
    machine.load(2)
    assert machine.turn({2: 1}, more=True) == [2]
    assert machine.turn({2: 1}) is None, "nobody was woken for it"
    machine.idle()
    assert machine.bell.told > waits._TRUSTED


def test_a_load_of_another_machine_waits_no_longer_than_this() -> None:
    bell = _Bell()
    bell.told = waits._TRUSTED
    bell.gap_s = 0.01
    assert bell.trusted_until() == pytest.approx(bell.claimed_at + 0.03)
    bell.gap_s = 10.0
    assert bell.trusted_until() == pytest.approx(bell.claimed_at + 0.05)


def test_the_look_after_words_that_went_back_is_into_all(machine: Machine) -> None:
    """The file was made anew."""
    machine.trust()
    machine.bell.known = [9_999] * 3
    machine.load(1)
    assert machine.turn({1: 1}) is None
