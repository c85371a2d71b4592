"""When ticks are: every so often, and by cron expressions through both changes of daylight saving."""

from __future__ import annotations

import datetime as dt
import sys
import zoneinfo
from typing import Any

import pytest

from ignis.errors import ConfigError
from ignis.schedules.timing import MOST_COUNTED, Cron, Every, every_ms

BERLIN = "Europe/Berlin"
HOUR_MS = 3_600_000


def ms(text: str) -> int:
    """A moment, given with its offset."""
    return int(dt.datetime.fromisoformat(text).timestamp() * 1000)


def utc(ticks: list[int]) -> list[str]:
    return [dt.datetime.fromtimestamp(one / 1000, dt.timezone.utc).strftime("%d %H:%M") for one in ticks]


def ticks(cron: str, after: str, until: str, zone: str = BERLIN) -> list[str]:
    return utc(Cron(cron, zone).ticks(ms(after), ms(until), 1_000))


@pytest.mark.parametrize(
    ("word", "fields"),
    [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"), ("@weekly", "0 0 * * SUN"),
     ("@monthly", "0 0 1 * *"), ("@yearly", "0 0 1 JAN *"), (" @Annually ", "0 0 1 1 *")],
)  # fmt: skip
def test_a_word_of_cron(word: str, fields: str) -> None:
    begin, end = ms("2026-01-01T00:00:00+01:00"), ms("2027-06-01T00:00:00+02:00")
    assert Cron(word, BERLIN).ticks(begin, end, 50) == Cron(fields, BERLIN).ticks(begin, end, 50) != []


# In Berlin 2026-03-29 02:00 +01:00 is 03:00 +02:00, and 2026-10-25 03:00 +02:00 is 02:00 +01:00.
SPRING = ("2026-03-28T12:00:00+01:00", "2026-03-30T12:00:00+02:00")
AUTUMN = ("2026-10-24T12:00:00+02:00", "2026-10-26T12:00:00+01:00")


@pytest.mark.parametrize(
    ("cron", "found"),
    [
        ("30 2 * * *", ["29 01:00", "30 00:30"]),  # right behind the gap
        ("0 3 * * *", ["29 01:00", "30 01:00"]),
        ("15,45 2 * * *", ["29 01:00", "30 00:15", "30 00:45"]),  # two times of day that are one moment: one tick
        ("0 2,3 * * *", ["29 01:00", "30 00:00", "30 01:00"]),
        ("59 1 * * *", ["29 00:59", "29 23:59"]),
    ],
)
def test_an_hour_that_does_not_exist(cron: str, found: list[str]) -> None:
    assert ticks(cron, *SPRING) == found


def test_by_real_time_nothing_is_in_the_gap_and_nothing_is_missing() -> None:
    assert ticks("*/30 * * * *", "2026-03-29T01:29:00+01:00", "2026-03-29T03:31:00+02:00") == [
        "29 00:30", "29 01:00", "29 01:30",
    ]  # fmt: skip
    assert ticks("*/30 2 * * *", "2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00") == []


@pytest.mark.parametrize(
    ("cron", "found"),
    [
        ("30 2 * * *", ["25 00:30", "26 01:30"]),  # at the first of the two
        ("0 3 * * *", ["25 02:00", "26 02:00"]),
        ("0 2 * * *", ["25 00:00", "26 01:00"]),
    ],
)
def test_an_hour_that_comes_twice(cron: str, found: list[str]) -> None:
    assert ticks(cron, *AUTUMN) == found


def test_by_real_time_the_hour_that_comes_twice_counts_twice() -> None:
    day = ("2026-10-25T01:59:00+02:00", "2026-10-25T03:01:00+01:00")
    assert ticks("0 * * * *", *day) == ["25 00:00", "25 01:00", "25 02:00"]
    assert ticks("*/30 * * * *", *day) == ["25 00:00", "25 00:30", "25 01:00", "25 01:30", "25 02:00"]


@pytest.mark.parametrize(
    "cron", ["30 2 * * *", "15,45 2 * * *", "0 * * * *", "*/20 * * * *", "0 2,3 * * *", "0 0 * * *"]
)
@pytest.mark.parametrize(
    "zone",
    [
        BERLIN,
        pytest.param("America/New_York", marks=pytest.mark.long),
        "Australia/Lord_Howe",
        "America/Havana",
        pytest.param("Asia/Kolkata", marks=pytest.mark.long),
        pytest.param("UTC", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "month", [pytest.param(3, marks=pytest.mark.long), 10, pytest.param(11, marks=pytest.mark.long)]
)
def test_asked_from_any_moment_the_ticks_are_the_same(cron: str, zone: str, month: int) -> None:
    """A leader goes on from where another stopped, in whichever of two hours that was."""
    timing = Cron(cron, zone)
    begin = int(dt.datetime(2026, month, 1, tzinfo=dt.timezone.utc).timestamp() * 1000)
    end = begin + 30 * 24 * HOUR_MS
    whole = timing.ticks(begin, end, 100_000)
    assert whole == sorted(set(whole))
    at, pieced = begin, []
    while at < end:
        until = min(end, at + 97 * 60_000 + 7_123)
        pieced += timing.ticks(at, until, 1_000)
        at = until
    assert pieced == whole
    assert timing.count(begin, begin + 24 * HOUR_MS).total == sum(one <= begin + 24 * HOUR_MS for one in whole)


# Lord Howe shifts by 30 minutes: 2026-04-05 02:00 +11:00 is 01:30 +10:30, and 2026-10-04 02:00 +10:30 is 02:30 +11:00.
@pytest.mark.parametrize(
    ("cron", "after", "until", "found"),
    [
        ("5 */2 * * *", "2026-04-05T00:00:00+11:00", "2026-04-05T05:00:00+10:30", ["04 13:05", "04 15:35", "04 17:35"]),
        ("45 * * * *", "2026-04-05T01:00:00+11:00", "2026-04-05T03:00:00+10:30", ["04 14:45", "04 15:15", "04 16:15"]),
        ("*/20 2 * * *", "2026-10-04T00:00:00+10:30", "2026-10-04T05:00:00+11:00", ["03 15:40"]),
        ("10,45 2 * * *", "2026-10-04T00:00:00+10:30", "2026-10-04T05:00:00+11:00", ["03 15:30", "03 15:45"]),
    ],
)
def test_a_shift_of_half_an_hour(cron: str, after: str, until: str, found: list[str]) -> None:
    assert ticks(cron, after, until, "Australia/Lord_Howe") == found


def shifts_of(zone: dt.tzinfo, year: int) -> list[int]:
    """The seconds since 1970 at which the clocks of a zone shift in a year."""

    def offset(at_s: int) -> dt.timedelta | None:
        return dt.datetime.fromtimestamp(at_s, zone).utcoffset()

    begin_s, found = int(dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc).timestamp()), []
    for day_s in range(begin_s, begin_s + 366 * 86_400, 86_400):
        if offset(day_s) != offset(day_s + 86_400):
            minutes = range(day_s + 60, day_s + 86_401, 60)
            found += [at_s for at_s in minutes if offset(at_s) != offset(at_s - 60)]
    return found


def by_the_minute(cron: str, zone: dt.tzinfo, begin_s: int, end_s: int) -> list[int]:
    """What docs/schedules.md says, minute by minute. Minute and hour are lists, ``*`` or ``*/n``."""
    wanted = []
    fields = cron.split()[:2]
    for field, count in zip(fields, (60, 24), strict=True):
        step = int(field.partition("/")[2] or 1)
        wanted.append(set(range(0, count, step)) if field[0] == "*" else {int(one) for one in field.split(",")})

    def named(local: dt.datetime) -> bool:
        return local.minute in wanted[0] and local.hour in wanted[1]

    real_time, found, before, minute = any(one[0] == "*" for one in fields), [], None, dt.timedelta(minutes=1)
    furthest = dt.datetime.fromtimestamp(0, dt.timezone.utc).replace(tzinfo=None)
    for at_s in range(begin_s, end_s, 60):
        local = dt.datetime.fromtimestamp(at_s, zone).replace(tzinfo=None)
        if real_time:
            due = named(local)
        else:
            due = local > furthest and named(local)
            skipped = before + minute if before is not None else local
            while skipped < local:
                due, skipped = due or named(skipped), skipped + minute
            furthest, before = max(furthest, local), local
        if due:
            found.append(at_s * 1000)
    return found


@pytest.mark.long
def test_through_every_shift_of_every_zone_in_a_year() -> None:
    """Each kind of shift once: at what time of day, from which offset to which."""
    kinds: dict[tuple[object, ...], tuple[str, int]] = {}
    for name in sorted(zoneinfo.available_timezones()):
        zone = zoneinfo.ZoneInfo(name)
        for at_s in shifts_of(zone, 2026):
            was, now = (dt.datetime.fromtimestamp(one, zone) for one in (at_s - 60, at_s))
            kinds.setdefault((was.time(), was.utcoffset(), now.utcoffset()), (name, at_s))
    assert len(kinds) > 20
    for name, at_s in kinds.values():
        zone = zoneinfo.ZoneInfo(name)
        for cron in (
            "* * * * *", "30 * * * *", "5 */2 * * *", "*/20 2 * * *", "*/7 1 * * *", "30 2 * * *", "0 0 * * *",
            "15,45 0,1,2,3 * * *", "59 23 * * *",
        ):  # fmt: skip
            begin_s, end_s = at_s - 5 * 3_600, at_s + 5 * 3_600
            expected = by_the_minute(cron, zone, begin_s, end_s)
            found = Cron(cron, name)
            assert found.ticks(begin_s * 1000 - 1, end_s * 1000 - 1, 1_000) == expected, (name, cron)
            for after_s in range(at_s - 7_200, at_s + 7_200, 20 * 60):
                later = [one for one in expected if one > after_s * 1000]
                assert found.ticks(after_s * 1000, end_s * 1000 - 1, 3) == later[:3], (name, cron, after_s)


def test_a_year_from_one_shift_to_the_next_hides_none() -> None:
    """Both times of the night of one day in October, though the next day that is named is a year later."""
    assert ticks("*/30 2 25 10 *", "2026-10-25T02:29:00+02:00", "2028-01-01T00:00:00+01:00") == [
        "25 00:30", "25 01:00", "25 01:30", "25 00:00", "25 00:30",
    ]  # fmt: skip


def test_every_so_often_goes_by_its_anchor() -> None:
    timing = Every(1_000, 300)
    assert timing.ticks(0, 2_000, 10) == [1_300, 1_600, 1_900]
    assert timing.ticks(1_300, 2_000, 1) == [1_600]
    assert timing.ticks(1_301, 1_599, 10) == []
    assert (timing.next_ms(-5), timing.next_ms(1_300), timing.next_ms(1_299)) == (1_300, 1_600, 1_300)
    assert timing.count(0, 1_000 + 300 * 10**9) == (10**9, 1_000 + 300 * 10**9, False), "not one by one"
    assert timing.count(1_600, 1_700).total == 0


def test_a_long_count_of_a_cron_expression_comes_in_parts() -> None:
    timing = Cron("* * * * *")
    until = (MOST_COUNTED + 1) * 60_000
    assert timing.count(0, until - 1) == (MOST_COUNTED, MOST_COUNTED * 60_000, False)
    assert timing.count(0, until) == (MOST_COUNTED, MOST_COUNTED * 60_000, True)


@pytest.mark.parametrize(
    ("cron", "zone", "says"),
    [
        ("0 3 * *", "UTC", "has 4 fields"),
        ("0 0 3 * * *", "UTC", "For seconds give every"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("0 0 30 2 *", "UTC", "Bad day-of-month"),
        ("* * */20 * 1L", "UTC", "no moment within 50 years"),
        ("0 3 * * *", "Europe/Bärlin", "is not known"),
        ("0 3 * * *", "../../etc/passwd", "is not known"),
        (7, "UTC", "is not text"),
    ],
)
def test_what_cannot_be_a_cron_expression(cron: Any, zone: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Cron(cron, zone)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigError, match=r"pip install 'ignis-mq\[schedules\]'"):
        Cron("0 3 * * *")
    assert Every(0, 100).next_ms(0) == 100


@pytest.mark.parametrize("every", ["0s", 0, "99ms", "366d", float("nan"), float("inf"), "often", None, True, -5])
def test_what_cannot_be_a_period(every: object) -> None:
    with pytest.raises(ConfigError):
        every_ms(every)


def test_periods() -> None:
    assert [every_ms(one) for one in ("5m", 0.1, "100ms", dt.timedelta(hours=1), 2)] == [
        300_000,
        100,
        100,
        HOUR_MS,
        2_000,
    ]


def test_what_comes_next_does_not_follow_from_what_was_asked_before() -> None:
    timing, day_ms = Cron("0 3 * * *"), 24 * HOUR_MS
    asked = [0, 2 * HOUR_MS, 3 * HOUR_MS - 1, 3 * HOUR_MS, day_ms, 0, 5 * day_ms, 4 * HOUR_MS, 2 * HOUR_MS]
    assert [timing.next_ms(after_ms) for after_ms in asked] == [
        (
            3 * HOUR_MS
            if after_ms < 3 * HOUR_MS
            else 27 * HOUR_MS
            if after_ms < 27 * HOUR_MS
            else 5 * day_ms + 3 * HOUR_MS
        )
        for after_ms in asked
    ]
