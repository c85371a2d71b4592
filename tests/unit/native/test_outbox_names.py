"""A mapped outbox whose file is removed or moved: it is given up once nobody takes what is in it, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ignis import errors
from ignis.native import ANY_SHARD, Intake, MappedOutbox, Receipt
from tests.unit.native.native_support import eventually

WAIT_S = 30


class Losses(list[tuple[int, bool, bool]]):
    """What ``on_loss`` was told; an error for it."""

    error = errors.StoreUnreachableError("it is lost")

    def __call__(self, count: int, moved: bool, had_taker: bool) -> BaseException:
        self.append((count, moved, had_taker))
        return self.error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "room").mkdir()
    return tmp_path / "room" / "channel"


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def box(path: Path, losses: Losses) -> Iterator[MappedOutbox]:
    made = MappedOutbox(
        path=path, bell=path.parent.parent / "bell", capacity=64, max_message_bytes=4_096, bytering_bytes=8_192
    )
    made.on_loss = losses
    yield made
    made.close()


def send(box: MappedOutbox) -> Receipt:
    return box.send(b"x", ANY_SHARD, 0)


def take_all(intake: Intake) -> None:
    intake.hold(64, 1 << 20, 8, 0)
    intake.acknowledge()


def test_a_file_in_its_place_is_not_lost(box: MappedOutbox, path: Path, losses: Losses) -> None:
    receipt = send(box)
    assert not box.look()
    intake = Intake.open(path)
    intake.close()
    assert not box.look(), "the next one finds it there"
    assert not receipt.done()
    assert losses == []


def test_what_nobody_ever_took_is_lost_with_the_file(box: MappedOutbox, path: Path, losses: Losses) -> None:
    receipts = [send(box) for _ in range(3)]
    path.unlink()
    box.wait_settled(3, WAIT_S)  # ends by itself
    assert box.lost
    assert losses == [(3, False, False)]
    assert [receipt.exception(0) for receipt in receipts] == [losses.error] * 3
    assert [box.error_of(n) for n in (1, 3)] == [losses.error] * 2
    assert (box.sent, box.pending, box.failed, box.first_error) == (3, 0, 3, losses.error)
    with pytest.raises(errors.StoreUnreachableError, match="it is lost"):
        send(box)
    with pytest.raises(errors.StoreUnreachableError, match="it is lost"):
        box.send_record(b"x" * 40)
    assert len(losses) == 1


def test_who_lives_goes_on_taking_from_a_removed_file(box: MappedOutbox, path: Path, losses: Losses) -> None:
    receipts = [send(box) for _ in range(3)]
    intake = Intake.open(path)
    path.unlink()
    assert not box.look()
    intake.hold(1, 1 << 20, 8, 0)
    intake.acknowledge()
    assert not box.look()
    assert (receipts[0].done(), receipts[1].done()) == (True, False)
    intake.close()
    assert box.look()
    assert receipts[0].exception(0) is None, "taken is stored"
    assert receipts[1].exception(WAIT_S) is losses.error
    assert losses == [(2, False, True)]


def test_a_removed_file_is_given_up_when_all_is_taken(box: MappedOutbox, path: Path, losses: Losses) -> None:
    receipt = send(box)
    intake = Intake.open(path)
    path.unlink()
    take_all(intake)
    assert box.look(), "who takes from it lives, but the next one would not find it"
    assert (receipt.exception(0), box.failed) == (None, 0)
    with pytest.raises(errors.StoreUnreachableError):
        send(box)
    assert losses == [(0, False, True)]
    intake.close()


def test_a_file_that_was_moved(box: MappedOutbox, path: Path, losses: Losses) -> None:
    intake = Intake.open(path)
    path.parent.rename(path.parent.with_name("elsewhere"))
    send(box)
    take_all(intake)
    assert not box.look(), "who has it goes on"
    receipt = send(box)
    intake.close()
    assert receipt.exception(WAIT_S) is losses.error
    assert losses == [(1, True, True)]


def test_another_file_in_its_place_is_not_it(box: MappedOutbox, path: Path, losses: Losses) -> None:
    path.unlink()
    path.write_bytes(b"another")
    assert box.look()
    with pytest.raises(errors.StoreUnreachableError):
        send(box)
    assert losses == [(0, False, False)]


def test_a_late_send_goes_elsewhere(box: MappedOutbox, path: Path, tmp_path: Path) -> None:
    other = MappedOutbox(path=tmp_path / "other", bell=tmp_path / "bell", capacity=64)
    box.on_late_send = other.send
    path.unlink()
    assert box.look()
    assert box.send(b"late", 3, 1, b"key", b"", 0.5).sequence == 1
    assert (box.sent, other.sent) == (0, 1)
    other.close()
    with pytest.raises(errors.ClosedError):
        send(box)


def test_who_sends_finds_out_by_itself(box: MappedOutbox, path: Path, losses: Losses) -> None:
    path.unlink()

    def refused() -> bool:
        try:
            box.send(b"x", ANY_SHARD, 0, timeout=0)
        except errors.ChannelFullError:
            return False
        except errors.StoreUnreachableError:
            return True
        return False

    eventually(refused, timeout_s=WAIT_S)
    assert box.pending == 0
    assert losses == [(box.sent, False, False)]


def test_what_was_refused_stays_refused(box: MappedOutbox, path: Path) -> None:
    receipt = send(box)
    told: list[object] = []
    box.on_loss = lambda *what: told.append(what)
    box.on_refusal = lambda: errors.RelayRefusedError("q.1.channel", "it is of another codec")
    box.on_late_send = lambda *arguments: pytest.fail("a refused channel has no successor")
    path.rename(path.with_name("aside"))
    with pytest.raises(errors.RelayRefusedError, match="another codec"):
        receipt.result(WAIT_S)
    with pytest.raises(errors.RelayRefusedError):
        send(box)
    assert not box.lost
    assert told == [(1, True, False)]


def test_a_callback_that_sends_again_gets_the_error(box: MappedOutbox, path: Path, losses: Losses) -> None:
    caught: list[BaseException] = []

    def again(receipt: Receipt) -> None:
        try:
            send(box)
        except errors.IgnisError as exc:
            caught.append(exc)

    send(box).add_done_callback(again)
    path.unlink()
    assert box.look()
    assert box.pending == 0
    assert caught == [losses.error]
    assert losses == [(1, False, False)]
