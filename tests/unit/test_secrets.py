"""No secret of a URL or a setting is shown, whichever way a URL is written, or miswritten."""

from __future__ import annotations

import logging
import time
import traceback
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ignis
from ignis.broker.client.address import BrokerAddress
from ignis.cli import main
from ignis.cli.state import State
from ignis.config import LeaderSettings, load_file
from ignis.errors import ConfigError, IgnisError
from ignis.storage import open_store
from ignis.urls import masked, masked_path, redacted

SECRET = "s3cr3t"

URLS = [
    f"ignis://user:{SECRET}@host:9710",
    f"ignis://{SECRET}@host",
    f"ignis://host:9710/?token={SECRET}",
    f"ignis+tls://host/?timeout_s=5&token={SECRET}&user=me",
    f"ignis://host?password={SECRET}",
    f"ignis://host/?password=a@{SECRET}",
    f"ignis://host/?{SECRET}",
    f"ignis://host/?client_id=x&SecretKey_id={SECRET}",
    f"ignis://host/#{SECRET}",
    f"ignis://host/#x@{SECRET}",
    f"ignis://user:{SECRET}",
    f"ignis://user:12/{SECRET}@host",
    f"ignis://user:a?{SECRET}@host",
    f"ignis://user:a#{SECRET}@host",
    f"ignis://user:a@{SECRET}@host",
    f"ignis://[{SECRET}",
    f"user:{SECRET}@host",
    f"ignis:user:{SECRET}@host",
    f"ignis:/user:{SECRET}@host",
    f"ignis+tls:/user:{SECRET}@host",
    f"ignis:\\\\user:{SECRET}@host",
    f"ignis:///user:{SECRET}@host",
    f"aerospike:user:{SECRET}@host/ns",
    f"relay:user:{SECRET}@host",
    f"embedded:user:{SECRET}@host",
    f"ignis://host:1?token=x&{SECRET}",
    f"://{SECRET}@x",
    f"{SECRET}=1://x",
    f"aerospike://user:{SECRET}@h1:3000,h2/ns?password={SECRET}",
    f"aerospike://user:{SECRET}/ns",
    f"postgresql://user:{SECRET}@host/db?sslpassword={SECRET}",
    f"postgresql:///db?password={SECRET}",
    f"embedded:///var/lib/x?key={SECRET}",
    f"memory://name?password={SECRET}",
    f"relay:///dev/shm/x?token={SECRET}",
    f"unknown://user:{SECRET}@host",
    f"ignis://us℀er:{SECRET}@host",
    f"ignis://host:1,token={SECRET}",
    f"ignis://host,pw={SECRET}",
    f"ignis://host;pw={SECRET}",
    f"aerospike://h1,pw={SECRET}:3000/ns",
    f"aerospike://h1,pw={SECRET}:a/ns",
    f"aerospike://h1:3000/ns;pw={SECRET}",
    f"ignis://host:1;token={SECRET}",
    f"ignis://host:1|token={SECRET}",
    f"ignis://host:1/;{SECRET}",
    f"ignis://host:1?timeout_s=5;token={SECRET}",
    f"ignis://host:1/?timeout_s=5,pw={SECRET}",
    f"ignis://host:1/?max_frame_bytes=5?pw={SECRET}",
    f"ignis://host:1/?client_id=shop;token={SECRET}",
    f"ignis://host:1/?client_id=x?token={SECRET}",
    f"aerospike://h1:3000,h2:3000,token={SECRET}/ns",
    f"aerospike://h1:3000/ns?client_id=a;password={SECRET}",
    f"aerospike://h1:3000/ns?scope=local;password={SECRET}",
    f"embedded:///var/lib/x?create=false;token={SECRET}",
    f"embedded:///var/lib/x?sync_interval_ms=5,pw={SECRET}",
    f"memory://name?creat=true;token={SECRET}",
    f"relay:///dev/shm/x?client_id=a;token={SECRET}",
    *(
        f"{scheme}://{login}{mark}x@place"
        for scheme in ("embedded", "relay")
        for login in (f"u:{SECRET}", SECRET, f"u:{SECRET}/y")
        for mark in "?#"
    ),
]


@pytest.mark.parametrize("url", URLS)
def test_what_is_shown_of_a_url(url: str) -> None:
    assert SECRET not in redacted(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("embedded:///var/lib/x@y", "embedded:///var/lib/x@y"),
        ("embedded:///x?sync_interval_ms=5&create=false", "embedded:///x?sync_interval_ms=5&create=false"),
        ("memory://", "memory://"),
        (f"memory://u:{SECRET}#x@place", "memory://***"),
        ("embedded:///x@y?create=false", "embedded:///x@y?create=false"),
        ("relay://./x?client_id=a@b", "relay://./x?client_id=***"),
        ("ignis://[::1]:9710", "ignis://[::1]:9710"),
        (f"ignis://a:{SECRET}@host:9710/?timeout_s=5&token={SECRET}", "ignis://host:9710/?timeout_s=5&token=***"),
        ("aerospike://h1:3000,h2/ns?client_id=a&scope=local", "aerospike://h1:3000,h2/ns?client_id=a&scope=local"),
        ("/var/lib/x", "/var/lib/x"),
        (None, "***"),
    ],
)
def test_what_is_left(url: object, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize("url", URLS)
def test_errors_and_reprs(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(IgnisError) as caught:
            open_store(url, **({"connect_timeout_s": 0.01} if url.startswith("ignis") else {}))
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        try:
            said = repr(ignis.Ignis(url))
        except ConfigError as exc:  # of no store there is
            said = "".join(traceback.format_exception(exc))
        assert SECRET not in said
        assert SECRET not in repr(State(url=url))
    assert SECRET not in caplog.text


def test_other_reprs() -> None:
    pytest.importorskip("pyspark")
    from ignis.spark.pipeline.target import Target

    assert SECRET not in repr(Target(f"ignis://host/?token={SECRET}", "a", "b"))
    assert SECRET not in repr(BrokerAddress(token=SECRET, password=SECRET))
    assert SECRET not in repr(LeaderSettings(zookeeper=f"zk://u:{SECRET}@host", password=SECRET))


@pytest.mark.parametrize("text", [f'url = ["{SECRET}"]', f'url = {{password = "{SECRET}"}}', f'leader = "{SECRET}"'])
def test_a_settings_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ignis.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_file(path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        f"zk://user:{SECRET}", f"zk://user:12/..//{SECRET}@host", f"user:{SECRET}?@host", f"h:1,pw={SECRET}", f"zk://h;pw={SECRET}/x",
        f"zk://h//x;pw={SECRET}",
    ],
)  # fmt: skip
def test_an_address_of_zookeeper(address: str) -> None:
    from ignis.leader.address import Address

    with pytest.raises(ConfigError) as caught:
        Address.of(LeaderSettings(zookeeper=address))
    assert SECRET not in str(caught.value)


def test_the_driver_of_zookeeper_logs_no_password(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("kazoo")
    from kazoo.protocol.serialization import Auth

    from ignis.leader.zookeeper_session import _Quiet

    with caplog.at_level(logging.DEBUG):
        quiet = _Quiet(logging.getLogger("ignis.leader.zookeeper"), {})
        quiet.log(logging.DEBUG, "Sending request(xid=%s): %s", -4, Auth(0, "digest", f"user:{SECRET}"))
    assert "Sending request(xid=-4): Auth" in caplog.text
    assert SECRET not in caplog.text


WRONG_PLACES = [
    f"ignis://user:{SECRET}@host:1",
    f"ignis:/user:{SECRET}@host",
    f"ignis:////user:{SECRET}@host",
    f"ignis:\\\\user:{SECRET}@host",
    f"ignis:user:{SECRET}@host",
    f"user:{SECRET}@host",
    f"ignis://user:a b{SECRET}@host",
    f"ignis://user:a/{SECRET}@host?x=y",
    f"ignis://host?token={SECRET}",
    f"ignis://host?timeout_s=5&{SECRET}#{SECRET}",
    f"ignis://host:1,token={SECRET}",
    f"ignis://host:1/?timeout_s=5;token={SECRET}",
    f"ignis://host:1/?client_id=x?pw={SECRET}",
]


@pytest.mark.parametrize("url", WRONG_PLACES)
def test_a_url_in_the_place_of_something_else(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IGNIS_CLIENT_CONNECT_TIMEOUT_S", "0.01")
    assert SECRET not in masked(url)
    assert SECRET not in masked(f"before {url!r} behind")
    store = f"embedded://{tmp_path}/store"
    for wrong in (
        lambda: ignis.Ignis(store, client_id=url),
        lambda: ignis.Ignis(store, config=url),
        lambda: ignis.Ignis(store, store=cast(Any, url)),
        lambda: ignis.Ignis(store, leader=cast(Any, url)),
        lambda: ignis.Ignis(store, store=cast(Any, [("token", SECRET)])),
        lambda: ignis.Ignis(store, store=cast(Any, (f"token={SECRET}",))),
        lambda: ignis.Ignis(store).queue(url, dict),
    ):
        with pytest.raises(IgnisError) as caught:
            wrong()
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    for arguments in (
        ["doctor", url],
        ["--config", url, "queues"],
        ["-u", store, "publish", url],
        ["-u", store, "stats", url],
        ["-u", store, "broker", "--bind", url],
        ["-u", store, "broker", "--health", url],
        [url],
        ["-u", url, "queues"],
    ):
        assert main(arguments) != 0
        shown = capfd.readouterr()
        assert SECRET not in shown.out + shown.err, arguments


@pytest.mark.parametrize(
    "text",
    [
        "queue 'a' of user x@y",
        "{'mail': 'a@b'}",
        "/var/lib/a@b",
        "embedded:///x?create=false",
        "12:30 and 14:00",
        "nothing was given (ignis://user:password@host:port, or IGNIS_TOKEN)",
    ],
)
def test_what_is_no_secret_is_left(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"embedded://u:{SECRET}@/x", "embedded://***@/x"),
        (f"memory://u:{SECRET}@h", "memory://***@h"),
        (f"relay://u:{SECRET}@./x", "relay://***@./x"),
        (f"ignis://h:1/token={SECRET}", "ignis://h:1/***"),
        (f"aerospike://h:3000/password={SECRET}", "aerospike://h:3000/***"),
        ("embedded:///var/lib/a:b@c", "embedded:///var/lib/a:b@c"),
        ("aerospike://h:3000/ns", "aerospike://h:3000/ns"),
    ],
)
def test_a_login_and_options_where_a_path_is(url: str, shown: str) -> None:
    assert redacted(url) == shown
    assert shown in repr(ignis.Ignis(url))


def test_a_password_with_the_end_of_a_line_in_it() -> None:
    with pytest.raises(ConfigError) as caught:
        ignis.Ignis(config=f"ignis://u:{SECRET}\n@h:1")
    assert SECRET not in str(caught.value)
    assert masked(f"u:{SECRET}\n{SECRET}@h") == "***@h"
    assert masked("one: two\nthree@four") == "one: two\nthree@four"


@pytest.mark.parametrize("url", [f"ignis://u:{SECRET}@h:1", f"ignis://h:1?token={SECRET}"])
@pytest.mark.parametrize(
    "words",
    [
        ["load"], ["broker", "--users"], ["console", "--origin"], ["console", "--audit"], ["worker"], ["deploy-files"],
        ["broker", "user", "list", "--users"], ["queue", "create"], ["dump", "q", "--out"], ["--config"],
    ],
)  # fmt: skip
def test_a_url_in_the_place_of_an_argument(
    words: list[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IGNIS_URL", "embedded://./s")
    rest = ["queues"] if words == ["--config"] else []
    main([*words, url, *rest])
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert said.out + said.err


BETWEEN = [
    ",",
    ";",
    "?",
    "&",
    "|",
    " ",
    "\t",
    ":",
    "%26",
    "%3B",
    "\\",
    "+",
    "!",
    "=",
    ";;",
    "&amp;",
    ";?",
    ",,",
    "/",
    "//",
]
"""What stands, or was taken to stand, between two options."""


BEGINS = [
    "ignis://h:1", "ignis://h:1/", "ignis://h", "ignis+tls://[::1]:9710", "ignis://h:1?timeout_s=5", "ignis://h:1/?client_id=shop",
    "aerospike://h1:3000,h2:3000/ns", "aerospike://h1:3000,h2/ns?scope=local", "embedded:///var/lib/x", "embedded://./x?create=false",
    "memory://name", "relay:///dev/shm/x", "ignis:/h:1", "ignis:h:1", "h:1", "/var/lib/x",
]  # fmt: skip


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("name", ["token", "password", "db_password", "Secret", "auth_token", "PASSWD"])
def test_whatever_stands_between_options(name: str, between: str) -> None:
    for begin, equals in product(BEGINS, ("=", "%3D", "==")):
        for value in (SECRET, f"a;{SECRET}", f"a,b={SECRET}", f"a&{SECRET}", f"a={SECRET}"):
            url = f"{begin}{between}{name}{equals}{value}"
            for text in (redacted(url), masked(url), masked(f"queue name {url!r} is none"), masked_path(Path(url))):
                assert SECRET not in text, url


@pytest.mark.parametrize("between", [";", "?", ",", "|", "%26", " ", "!", "/?"])
@pytest.mark.parametrize("name", ["client_id", "timeout_s", "scope", "max_frame_bytes", "create"])
def test_a_harmless_option_is_shown_when_it_has_plainly_a_value(name: str, between: str) -> None:
    for rest in (f"pw={SECRET}", f"k.y={SECRET}", f"timeout_s={between}{SECRET}"):
        for url in (
            f"ignis://h:1/?{name}=5{between}{rest}",
            f"embedded:///x?create=true&{name}=a-b.c:d{between}{rest}",
        ):
            assert SECRET not in redacted(url), url
            assert SECRET not in redacted(f"{url}&scope=local")
            if between != " ":  # there the URL ends
                assert SECRET not in masked(f"before {url} behind"), url


@pytest.mark.parametrize(
    "host",
    ["h;x", "h:1;x", "h:a", "h x", "h=1", "h:1,h2:x", "[::1", "[::1]x", "::1", "h%2C", "h|x", "h:123456"],
)
def test_what_is_no_host_is_not_shown(host: str) -> None:
    assert redacted(f"ignis://{host}{SECRET}") == "ignis://***"
    if " " not in host:  # there the URL ends
        assert SECRET not in masked(f"at 'ignis://{host}{SECRET}/x'")
        assert SECRET not in masked_path(Path(f"ignis://{host}{SECRET}"))
    assert redacted(f"aerospike://h1:3000,{host}{SECRET}/ns?scope=local") == "aerospike://***"


@given(
    st.sampled_from(["ignis", "ignis+tls", "aerospike", "postgresql", "embedded", "memory", "relay"]),
    st.lists(
        st.sampled_from(["h", "h:1", ":", "/", "x", "client_id=a", "timeout_s=5", "tls=on", "[::1]", *BETWEEN]),
        max_size=8,
    ),
    st.sampled_from(["token=", "password=", "client_secret=", "?passwd=", ";auth=", ",token="]),
    st.lists(st.sampled_from([*BETWEEN, "a", "scope=local", "#", "@"]), max_size=4),
)
def test_no_url_shows_what_is_called_a_secret(scheme: str, begin: list[str], name: str, end: list[str]) -> None:
    url = f"{scheme}://{''.join(begin)}{name}{SECRET}{''.join(end)}"
    for text in (redacted(url), masked(url), masked(repr(url)), masked(f"at {url}: no"), redacted(masked(url))):
        assert SECRET not in text, url


@pytest.mark.parametrize(
    "url",
    [
        "ignis://h:1", "ignis+tls://broker.example:9710/?timeout_s=2.5&client_id=shop-1", "aerospike://h1:3000,h2:3000/ns",
        "aerospike://[::1]:3000,[fe80::1%eth0]:3000/ns", "aerospike://h_1/ns?scope=local&sync_interval_ms=5",
        "embedded:///data/date=2020/R&D;x", "embedded://./x?create=false&max_store_bytes=1048576", "memory://", "memory://a-b",
        "relay:///dev/shm/ignis", "ignis://h:1/?connect_timeout_s=1e-3", "ignis://bücher.example:1",
    ],
)  # fmt: skip
def test_a_url_without_secrets_is_shown_whole(url: str) -> None:
    assert redacted(url) == masked(url) == url
    for text in (
        f"served at {url}, and more; nothing else.",
        f"({url})",
        f"[{url}]",
        f"{url}: no",
        f"'{url}'",
        f"`{url}`;",
    ):
        assert masked(text) == text


def test_what_our_own_texts_say_of_options_is_left() -> None:
    for text in (
        "write ?name=value&name2=value",
        "is not of the form $scrypt$ln=..,r=..,p=..$salt$hash",
        "it is not scheme://host:port/path?option=value",
        "shards=2, durability=sync",
    ):
        assert masked(text) == text


def test_a_long_text_takes_no_long_time() -> None:
    for text in ("token" * 100_000, ";token" * 100_000, ";a=" * 100_000, "ignis://" + "pass" * 100_000, "a" * 500_000):
        began_s = time.perf_counter()
        masked(text)
        redacted(text)
        redacted(f"embedded:///{text}?{text}")
        assert time.perf_counter() - began_s < 5
