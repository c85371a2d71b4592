"""Which URLs name a store, and what is said of one that does not."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

import ignis
from ignis.errors import ConfigError, StoreUnreachableError
from ignis.storage import open_store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("embedded://var/lib/x", "var/lib/x"),
        ("embedded://orders", "orders"),
        ("embedded:orders/x", "orders/x"),
        ("embedded://~/x", "~/x"),
        ("embedded://a%20b/x", "a b/x"),
    ],
)
def test_a_directory_is_absolute_or_says_that_it_is_not(
    url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as info:
        open_store(url)
    assert f"embedded:///{path} " in str(info.value)
    assert f"embedded://./{path} " in str(info.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["embedded:/./x", "embedded:///./x", "embedded:/../x"])
def test_a_dot_does_not_stand_at_the_root(url: str) -> None:
    """One slash too few or too many, and the directory was made in the root of the machine."""
    dots = url.rpartition("/x")[0].rpartition("/")[2]
    with pytest.raises(
        ConfigError, match=rf"write embedded://{re.escape(dots)}/x .* or embedded:///x for one from the root"
    ):
        open_store(url, create=False)


def test_both_spellings_that_may_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for url, path in (
        (f"embedded://{tmp_path}/absolute", tmp_path / "absolute"),
        ("embedded://./below/store", tmp_path / "here" / "below" / "store"),
        ("embedded://../beside", tmp_path / "beside"),
        (f"embedded:{tmp_path}/one", tmp_path / "one"),
    ):
        with open_store(url):
            assert (path / "format").exists()


@pytest.mark.parametrize(
    "url",
    [
        None,
        7,
        b"memory://",
        True,
        [],
        "",
        "\0",
        "embedded:///a\0b",
        "embedded:///a%00b",
        "\ud800",
        "embedded://[",
        "nonsense",
    ],
)
def test_what_is_no_url_at_all(url: Any) -> None:
    with pytest.raises(ConfigError):
        open_store(url)


@pytest.mark.parametrize("url", ["ignis://host:99999", "ignis://host:x", "ignis+tls://host:-1"])
def test_a_port_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://x", r"'http://x': its scheme is not one of aerospike, embedded, ignis, ignis\+tls, memory, relay$"),
        ("embeded://./x", r"is embedded meant\?$"),
        ("./orders", r"; a directory is embedded:///a/path"),
        ("https://user:secret@x/?a=b", "its scheme is not one of"),
    ],
)
def test_a_scheme_of_no_store_is_refused_when_the_application_is_made(
    url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, at the first use: perhaps in the first request that a service got."""
    with pytest.raises(ConfigError, match=says) as told:
        ignis.Ignis(url)
    assert "secret" not in str(told.value)
    monkeypatch.setenv("IGNIS_URL", url)
    with pytest.raises(ConfigError, match="environment variable IGNIS_URL"):
        ignis.Ignis()
    ignis.Ignis("memory://")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, True, "x", b"1", None, [], 1.5, object()])
@pytest.mark.parametrize("option", ["sync_interval_ms", "map_size_bytes", "max_store_bytes", "events"])
def test_an_option_of_a_wrong_type(option: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=option):
        open_store(f"embedded://{tmp_path}/store", **{option: value})
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", [7, None, b"x", "url", "client_id", "farm_id"])
def test_a_name_that_is_no_option(name: Any) -> None:
    with pytest.raises(ConfigError, match="no option of a store"):
        ignis.Ignis("memory://", store={name: 1})


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("embedded://{0}/store?sync_intervall_ms=20", "sync_interval_ms"),
        ("relay://{0}/relay?capasity=64", "capacity"),
        ("ignis://127.0.0.1:1?tocken=x", "token"),
        ("ignis://127.0.0.1:1?timout=1", "timeout_s"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_name(url: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"is {meant} meant"):
        open_store(url.format(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url",
    [
        "ignis://127.0.0.1:1?connect_timeout=0.05&timeout=1",
        "relay://{0}/relay?timeout=1",
        "embedded://{0}/store?write_timeout=5",
    ],
)
def test_an_option_without_its_unit(url: str, tmp_path: Path) -> None:
    """As in a settings file: connect_timeout is connect_timeout_s."""
    url = url.format(tmp_path)
    if url.startswith("ignis"):
        with pytest.raises(StoreUnreachableError, match=r"broker 127\.0\.0\.1:1: "):
            open_store(url)
    else:
        open_store(url).close()


@pytest.mark.parametrize("name", ["client", "relay"])
def test_a_section_that_is_the_stores_own(name: str) -> None:
    """Its settings page shows arguments of that form, and a bare TypeError said nothing."""
    given: Any = {name: {"timeout": 5}}
    with pytest.raises(TypeError, match=rf"{name}=\.\.\.: .* store=\{{\.\.\.\}}"):
        ignis.Ignis("ignis://127.0.0.1:1", **given)


def test_an_argument_that_there_is_not() -> None:
    given: Any = {"cliend_id": "x"}
    with pytest.raises(TypeError, match=r"no argument 'cliend_id'; is client_id meant\?"):
        ignis.Ignis("memory://", **given)
    given = {"broker": {"max_connections": 1}}
    with pytest.raises(TypeError, match=r"no argument 'broker'.*\[broker\] of the settings file"):
        ignis.Ignis("memory://", **given)


@pytest.mark.parametrize("url", ["embedded://{0}/store?client_id=shop", "ignis://127.0.0.1:1?farm_id=west"])
def test_the_name_of_an_application_is_no_option(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is none: .* Ignis\(url, client_id=\.\.\."):
        open_store(url.format(tmp_path))


def test_a_name_that_is_close_to_none() -> None:
    with pytest.raises(ConfigError, match=r"unknown store option 'nonsense'; known: .*token"):
        open_store("ignis://127.0.0.1:1?nonsense=x")


def test_a_misspelt_section_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "ignis.toml").write_text("[queues]\nshards = 2\n")
    with pytest.raises(ConfigError, match="is queue meant"):
        ignis.Ignis("memory://", config=tmp_path / "ignis.toml")


def test_a_relay_directory_that_was_not_there_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Producers may begin before the relay does, so it is made; but it may be a misspelt one."""
    for _ in range(2):
        open_store(f"relay://{tmp_path}/relai").close()
    assert [one.getMessage() for one in caplog.records] == [
        f"relay directory {tmp_path}/relai was not there and is made; no relay runs on it yet"
    ]
