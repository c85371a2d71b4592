"""One rule for ids: the function for a value, the one for an Arrow column, and the expression in the JVM, value by value."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'ignis-mq[spark]'")
pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'ignis-mq[spark]'")

from ignis.errors import InvalidMessageError  # noqa: E402
from ignis.spark import drain, publish, resume  # noqa: E402
from ignis.spark.columns import to_messages  # noqa: E402
from ignis.spark.ids import id_of, ids_from_jvm, ids_of_column  # noqa: E402

pytestmark = pytest.mark.integration

HEX = "0123456789abcdef0123456789abcdef"
CANONICAL = str(uuid.UUID(HEX))
UUIDS = [CANONICAL, CANONICAL.upper(), HEX, HEX.upper(), "0" * 32, "1" * 32]
LIKE_UUIDS = [
    HEX[:31], f"{HEX}0", f"{{{CANONICAL}}}", f"{HEX}    ", f" {CANONICAL}", f"{CANONICAL}\n", f"urn:uuid:{CANONICAL}",
    f"-----{HEX[1:]}", f"{HEX[1:]}-----", f"{HEX[:16]}-{HEX[16:31]}----", f"{HEX[:16]}-{HEX[16:]}", CANONICAL[:-1],
    f"{CANONICAL}0",    "1" * 31, f"({CANONICAL})",
]  # fmt: skip
TEXTS = [
    "", "x", "o1", "12", HEX[:30], "1234567890" * 4, f"{HEX}00", "x" * 32, "x" * 36, "g" + HEX[1:], "é" * 36, f"id {HEX}",
    "\0" * 16, "\U0001f600", "-----", "{}", "a\nb",
]  # fmt: skip
BYTES = [
    b"",
    b"x",
    b"\0" * 16,
    b"0123456789abcdef",
    b"0123456789abcde",
    b"0123456789abcdef0",
    HEX.encode(),
    b"\xff" * 16,
]
NUMBERS = [0, 1, -1, 255, 2**63 - 1, -(2**63)]


def attempted(value: Any) -> bytes | None:
    try:
        return id_of(value)
    except InvalidMessageError:
        return None


def from_column(value: Any, kind: Any) -> bytes | None:
    try:
        (found,) = ids_of_column(pa.array([value], kind)).to_pylist()
    except InvalidMessageError:
        return None
    return bytes(found)


def from_jvm(spark: Any, values: list[Any], kind: str) -> list[bytes | None]:
    df = spark.createDataFrame([(index, value) for index, value in enumerate(values)], f"n int, v {kind}")
    made = df
    messages = to_messages(made, value=made["n"].cast("string"), columns=None, key=None, id="v").toArrow()
    found: dict[int, bytes | None] = {}
    for number, one in zip(messages.column("body").to_pylist(), messages.column("id").to_pylist(), strict=True):
        kind_of = pa.int64() if isinstance(one, int) else pa.binary()
        try:
            (made_id,) = ids_from_jvm(pa.array([one], kind_of)).to_pylist()
        except InvalidMessageError:
            made_id = None
        found[int(number)] = made_id
    return [found[index] for index in range(len(values))]


def test_what_a_value_stands_for() -> None:
    for text in UUIDS:
        assert id_of(text) == uuid.UUID(text).bytes
    for text in LIKE_UUIDS:
        with pytest.raises(InvalidMessageError, match="looks like a UUID and is none"):
            id_of(text)
    assert len({id_of(text) for text in TEXTS}) == len(TEXTS)
    assert id_of(b"0123456789abcdef") == b"0123456789abcdef"
    assert id_of(1) == bytes(15) + b"\x01"


@given(
    st.one_of(
        st.text(max_size=40), st.text(alphabet="0123456789abcdefAF-{} ", min_size=30, max_size=40), st.uuids().map(str)
    )
)
def test_two_texts_are_one_id_only_as_the_two_forms_of_one_uuid(text: str) -> None:
    made = attempted(text)
    assert from_column(text, pa.string()) == made
    if made is not None:
        assert (made == attempted(text.replace("-", ""))) == (made == _as_uuid(text) or "-" not in text)


def _as_uuid(text: str) -> bytes | None:
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found.bytes if text.lower() in (str(found), found.hex) else None


def test_all_doors_say_the_same(spark: Any) -> None:
    for values, arrow, kind in (
        ([*UUIDS, *LIKE_UUIDS, *TEXTS], pa.string(), "string"),
        (BYTES, pa.binary(), "binary"),
        (NUMBERS, pa.int64(), "bigint"),
    ):
        expected = [attempted(value) for value in values]
        assert [from_column(value, arrow) for value in values] == expected
        assert from_jvm(spark, values, kind) == expected
    assert ids_of_column(pa.array(UUIDS)).to_pylist() == [id_of(text) for text in UUIDS]


def test_the_stage_refuses(spark: Any, embedded_url: str) -> None:
    df = spark.createDataFrame([(HEX[:31],)], "body string").coalesce(1)
    with pytest.raises(Exception, match="looks like a UUID and is none"):
        publish(df, embedded_url, "q", value="body", id="body").count()


@pytest.mark.long
def test_the_sink_refuses(spark: Any, embedded_url: str) -> None:
    from ignis.spark import IgnisDataSource

    spark.dataSource.register(IgnisDataSource)
    df = spark.createDataFrame([(HEX[:31],)], "body string").coalesce(1)
    with pytest.raises(Exception, match="looks like a UUID and is none"):
        df.write.format("ignis").options(url=embedded_url, queue="q", id="body").mode("append").save()


def test_what_is_not_the_queue_s_is_refused(spark: Any, embedded_url: str) -> None:
    df = spark.createDataFrame([("x",)], "body string").coalesce(1)
    publish(df, embedded_url, "q", value="body", shards=4).count()
    with pytest.raises(Exception, match="stored with 4 shards, asked for 9"):
        publish(df, embedded_url, "q", value="body", shards=9)


@pytest.mark.long
def test_what_the_sink_and_the_source_refuse(spark: Any, embedded_url: str) -> None:
    from ignis.spark import IgnisDataSource

    spark.dataSource.register(IgnisDataSource)
    df = spark.createDataFrame([("x",)], "body string").coalesce(1)
    publish(df, embedded_url, "q", value="body", shards=4).count()
    with pytest.raises(Exception, match="stored with 4 shards, asked for 9"):
        df.write.format("ignis").options(url=embedded_url, queue="q", shards=9).mode("append").save()
    with pytest.raises(Exception, match="max_rows is for streams"):
        spark.read.format("ignis").options(url=embedded_url, queue="q", max_rows=5).load().count()


def test_a_second_handle_of_a_job_says_so(spark: Any, embedded_url: str, caplog: pytest.LogCaptureFixture) -> None:
    publish(spark.createDataFrame([("x",)], "body string"), embedded_url, "q", value="body", shards=4).count()
    first = drain(spark, embedded_url, "q", job="j")
    assert not caplog.records
    second = resume(spark, embedded_url, "q", "j")
    assert "job j of q has another handle in this process" in caplog.text
    first.commit()
    caplog.clear()
    assert second.commit() == (0, 1, 0)
    assert resume(spark, embedded_url, "q", "j").claimed == 0
    assert not caplog.records


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_ids_of_messages_are_the_text_that_everything_else_gives(count: int) -> None:
    from ignis.native import encode_record, id_text, new_id
    from ignis.spark.columns import message_batch
    from ignis.storage.columns import columns_of

    ids = [new_id() for _ in range(count)]
    batch = message_batch(3, columns_of({n: encode_record(b"", id=id) for n, id in enumerate(ids)}))
    batch.validate(full=True)
    assert batch.column("_id").to_pylist() == [id_text(id) for id in ids]


def ids_in(spark: Any, zone: str, id: Any) -> list[bytes]:
    """Of two moments that are a microsecond apart, beside a text, read in a session of that zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        df = spark.range(2).selectExpr("timestamp_micros(1719793800123450 + id) as at", "'x' as v")
        column = to_messages(df, value="v", columns=None, key=None, id=id).toArrow().column("id")
        return sorted(bytes(one) for one in ids_from_jvm(column.combine_chunks()).to_pylist())
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("id", ["at", ["at", "v"]], ids=["one", "several"])
def test_moments_tell_rows_apart_in_every_time_zone(spark: Any, id: Any) -> None:
    utc = ids_in(spark, "UTC", id)
    assert len(set(utc)) == 2, "a microsecond is a difference"
    assert ids_in(spark, "America/New_York", id) == utc, "a program that runs elsewhere finds what it had stored"


def test_text_that_is_no_utf8_tells_rows_apart(spark: Any) -> None:
    df = spark.createDataFrame([(b"\xe9",), (b"\xfc",)], "b binary").selectExpr(
        "cast(b as string) as t", "1 as n", "'x' as v"
    )
    column = to_messages(df, value="v", columns=None, key=None, id=["t", "n"]).toArrow().column("id")
    assert len(set(column.to_pylist())) == 2


def test_a_body_keeps_a_moment_whole(spark: Any) -> None:
    df = spark.range(1).selectExpr(
        "timestamp_micros(1719793800123456) as at", "timestamp_ntz'2024-07-01 00:30:00.000001' as l"
    )
    (body,) = to_messages(df, value=None, columns=None, key=None, id=None).toArrow().column("body").to_pylist()
    assert "00.123456" in body
    assert '"l":"2024-07-01T00:30:00.000001"' in body
