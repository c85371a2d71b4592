"""The one door to the server: connecting, sending, counting, trying again, and saying what went wrong.

The only file that imports the driver. Everything else asks for *entries* (`write_entry`, `read_entry`,
`remove_entry`), sends them in batches, and reads ``entry.result`` and ``entry.record`` afterwards.

Trying again. A batch is a list of independent small operations, so only those are sent again that have no answer or one
that says "later". An operation without an answer may have been done. That is harmless for all that this package sends:
create-only writes are recognised by what they wrote, removals and stamps are idempotent, a pointer that was advanced
twice leaves a hole, and holes are dealt with; the counters are figures for people, which nothing decides by.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import aerospike
from aerospike import predicates
from aerospike.exception import AerospikeError
from aerospike_helpers.batch.records import BatchRecords, Read, Remove, Write
from tenacity import Retrying, retry_if_exception, retry_if_result, stop_after_attempt, wait_fixed

from ignis.config import check_file
from ignis.errors import IgnisError, NamespaceNotFoundError, RecordTooLargeError, StoreUnreachableError
from ignis.log_format import event_text
from ignis.process_hooks import on_fork
from ignis.storage.aerospike.options import AerospikeOptions
from ignis.storage.aerospike.status_codes import (
    AUTHENTICATION,
    EXISTS,
    FILTERED,
    GENERATION,
    INDEX_MISSING,
    INDEX_NOT_READABLE,
    LATER,
    NO_ANSWER,
    NOT_FOUND,
    OK,
    TOO_BIG,
    error_of,
)

__all__ = ["Connection", "read_entry", "remove_entry", "write_entry"]

log = logging.getLogger("ignis.storage.aerospike")

T = TypeVar("T")
Entry = Any
"""One operation of a batch, the driver's own object: ``result`` (a code) and ``record`` (key, meta, bins)."""

OP_WRITE = aerospike.OPERATOR_WRITE
"""The number of the operation; for the one place where a call of the helper for each bin is too slow."""

SEND_KEY = aerospike.POLICY_KEY_SEND
_ALL = aerospike.POLICY_COMMIT_LEVEL_ALL
_BASE = {"key": SEND_KEY, "commit_level": _ALL}


def policy(
    exists: str = "any", ttl: int | None = None, only_if: Any = None, generation: int | None = None
) -> dict[str, Any]:
    """How one entry is written.

    Args:
        exists: ``any``, ``create`` (fails when there), ``update`` (fails when absent) or ``replace`` (as ``update``, and
            only the given bins stay).
        ttl: seconds; -1 never ends, -2 leaves it as it is, None takes the namespace's default.
        only_if: an expression; a record that does not match is left alone and answers FILTERED.
        generation: fails with GENERATION when the record is of another.
    """
    made: dict[str, Any] = dict(_BASE)
    if exists != "any":
        made["exists"] = _EXISTS[exists]
    if ttl is not None:
        made["ttl"] = ttl
    if only_if is not None:
        made["expressions"] = only_if
    if generation is not None:
        made["gen"] = aerospike.POLICY_GEN_EQ
    return made


_EXISTS = {
    "create": aerospike.POLICY_EXISTS_CREATE,
    "update": aerospike.POLICY_EXISTS_UPDATE,
    "replace": aerospike.POLICY_EXISTS_REPLACE,
}


def write_entry(key: tuple[str, str, str], ops: list[Any], how: dict[str, Any]) -> Entry:
    """An entry that applies ``ops`` to one record."""
    return Write(key, ops, policy=how)


def read_entry(key: tuple[str, str, str], ops: list[Any] | None = None) -> Entry:
    """An entry that reads one record: all of it, or what ``ops`` ask for."""
    return Read(key, ops, read_all_bins=ops is None)


def remove_entry(key: tuple[str, str, str], only_if: Any = None) -> Entry:
    """An entry that removes one record."""
    return Remove(key, policy=None if only_if is None else {"expressions": only_if})


class Connection:
    """One client of one cluster. Thread-safe; not usable in a child after ``fork``.

    Args:
        hosts: addresses to begin with; the others of the cluster are learnt from them.
        namespace: where all records live.
        options: see `AerospikeOptions`.

    Raises:
        StoreUnreachableError, NamespaceNotFoundError, StoreError.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], namespace: str, options: AerospikeOptions) -> None:
        self.namespace = namespace
        self.options = options
        self.calls: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._retrying = Retrying(
            retry=retry_if_exception(lambda exc: isinstance(exc, IgnisError) and exc.retryable),
            stop=stop_after_attempt(options.retries),
            wait=wait_fixed(options.sleep_between_retries_ms / 1000),
            reraise=True,
        )
        self._client = self._retrying.copy()(self._connect, hosts)
        known = self.info("namespaces").strip().split(";")
        if namespace not in known:
            self.close()
            raise NamespaceNotFoundError(namespace, tuple(sorted(known)))

        on_fork(in_child=_in_child)
        _connections.add(self)

    def keep_for_ever(self) -> None:
        """In a child after ``fork``: the driver's threads are not there, and taking the client apart, at the latest when
        the interpreter ends, would crash. One reference too many keeps it."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._client))

    def _connect(self, hosts: Sequence[tuple[str, int]]) -> Any:
        options = self.options
        names = ", ".join(f"{host}:{port}" for host, port in hosts)
        try:
            client = aerospike.client(_config(hosts, options))
            if not client.is_connected():
                client.connect()
            return client
        except AerospikeError as exc:
            # Not as its cause: what the driver was given, the password with it, must not get into a log by that way.
            code = exc.code or 0
            if code in AUTHENTICATION:
                raise error_of(code, f"connecting to {names}", options, self.namespace, str(exc.msg)) from None
            tls = " with TLS, which tls=off turns off" if options.uses_tls else ""
            raise StoreUnreachableError(
                f"Aerospike cannot be reached at {names}{tls}: {exc.msg} (code {code})"
            ) from None

    def close(self) -> None:
        self._client.close()

    # -- batches

    def send(self, what: str, entries: list[Entry], *, allowed: Iterable[int] = (OK,)) -> list[Entry]:
        """Sends a batch, in pieces of ``batch_records``, and tries again what may be tried again.

        Args:
            what: the kind of call, for counts and messages.
            entries: from `write_entry` and its neighbours; each holds its answer afterwards.
            allowed: the codes that the caller understands.

        Returns:
            The entries. Raises the error of the first one whose code is not allowed, after everything was sent.
        """
        size = self.options.batch_records
        for start in range(0, len(entries), size):
            part = entries[start : start + size]
            self._until_answered(what, part, self.options.retries)
        self.check(what, entries, allowed)
        return entries

    def operate(
        self,
        what: str,
        keys: list[tuple[str, str, str]],
        ops: list[Any],
        how: dict[str, Any],
        *,
        allowed: Iterable[int] = (OK,),
    ) -> list[Entry]:
        """The same operations on many records: quicker than `send`, which see."""

        def call(some: list[tuple[str, str, str]]) -> Any:
            return self._client.batch_operate(some, ops, None, how)

        return self._alike(what, keys, call, lambda key: Write(key, ops, policy=how), allowed)

    def remove(self, what: str, keys: list[tuple[str, str, str]], only_if: Any = None) -> list[Entry]:
        """Removes records; absent ones answer NOT_FOUND, those that ``only_if`` does not match FILTERED."""
        how = {} if only_if is None else {"expressions": only_if}
        return self._alike(
            what, keys, lambda some: self._client.batch_remove(some, None, how), lambda key: Remove(key, policy=how),
            (OK, NOT_FOUND, FILTERED),
        )  # fmt: skip

    def read(self, what: str, keys: list[tuple[str, str, str]], bins: list[str] | None = None) -> list[Entry]:
        """Reads records: all bins, some, or with ``[]`` only whether they are there. Absent ones answer NOT_FOUND."""
        # An empty list of bins asks for the metadata alone; None for everything.
        arguments = () if bins is None else (bins,)
        return self._alike(
            what, keys, lambda some: self._client.batch_read(some, *arguments),
            lambda key: Read(key, None, read_all_bins=True), (OK, NOT_FOUND),
        )  # fmt: skip

    def _alike(
        self,
        what: str,
        keys: list[tuple[str, str, str]],
        call: Callable[[list[tuple[str, str, str]]], Any],
        entry: Callable[[tuple[str, str, str]], Entry],
        allowed: Iterable[int],
    ) -> list[Entry]:
        size = self.options.batch_records
        entries: list[Entry] = []
        for start in range(0, len(keys), size):
            part = keys[start : start + size]
            self._count(what)
            answered: list[Entry] = []
            try:
                answered = call(part).batch_records
            except AerospikeError as exc:
                self._reject(exc, what)
            answered = answered or [_unanswered(entry(key)) for key in part]
            again = [index for index, one in enumerate(answered) if one.result in LATER]
            if again and self.options.retries > 1:
                todo = [entry(answered[index].key) for index in again]
                time.sleep(self.options.sleep_between_retries_ms / 1000)
                self._until_answered(what, todo, self.options.retries - 1)
                for index, one in zip(again, todo, strict=True):
                    answered[index] = one
            entries += answered
        self.check(what, entries, allowed)
        return entries

    def _until_answered(self, what: str, entries: list[Entry], attempts: int) -> None:
        """Sends what has no answer yet, at most so many times. Leaves the last code in the entries."""
        todo = entries

        def attempt() -> bool:
            nonlocal todo
            self._count(what)
            self._send_once(what, todo)
            todo = [one for one in todo if one.result in LATER]
            return not todo

        Retrying(
            stop=stop_after_attempt(attempts),
            wait=wait_fixed(self.options.sleep_between_retries_ms / 1000),
            retry=retry_if_result(lambda done: not done),
            retry_error_callback=lambda state: False,
        )(attempt)

    def _send_once(self, what: str, entries: list[Entry]) -> None:
        for one in entries:
            one.result = NO_ANSWER
        try:
            self._client.batch_write(BatchRecords(entries))
        except AerospikeError as exc:
            code = self._reject(exc, what)
            for one in entries:
                if one.result == NO_ANSWER:
                    one.result = code

    def _reject(self, exc: Any, what: str) -> int:
        """The code of a whole call that failed. Raises when trying again is no use."""
        code = int(exc.code or 0)
        if code not in LATER:
            raise error_of(code, what, self.options, self.namespace, str(exc.msg)) from exc
        return code

    def check(self, what: str, entries: Iterable[Entry], allowed: Iterable[int] = (OK,)) -> None:
        """Raises the error of the first entry whose code is not allowed."""
        fine = frozenset(allowed)
        for one in entries:
            if one.result not in fine:
                raise self.error(one.result, what)

    def error(self, code: int, what: str, size_bytes: int = 0) -> IgnisError:
        """The exception for a result code."""
        if code == TOO_BIG:
            return RecordTooLargeError(size_bytes, self.record_limit())
        return error_of(code, what, self.options, self.namespace)

    # -- single records

    def call(
        self, what: str, function: Callable[[Any], T], *, fine: Iterable[int] = (), repeat: bool = True
    ) -> T | None:
        """``function(client)`` with retries; None when it ends with one of the codes ``fine``.

        Args:
            what: the kind of call, for counts and messages.
            repeat: whether a call that may have been done can be repeated.
        """
        if repeat:
            return self._retrying.copy()(self.once, what, function, fine)
        return self.once(what, function, fine)

    def once(self, what: str, function: Callable[[Any], T], fine: Iterable[int]) -> T | None:
        """`call` without a second try."""
        with self._counting:
            self.calls[what] += 1
        try:
            return function(self._client)
        except AerospikeError as exc:
            code = int(exc.code or 0)
            if code in fine:
                return None
            if code == TOO_BIG:
                raise RecordTooLargeError(0, self.record_limit()) from exc
            raise error_of(code, what, self.options, self.namespace, str(exc.msg)) from exc

    def get(self, what: str, key: tuple[str, str, str], only_if: Any = None) -> tuple[dict[str, Any], int] | None:
        """(bins, generation) of one record, or None when it is absent or does not match."""
        how = None if only_if is None else {"expressions": only_if}
        found = self.call(
            what, lambda client: client.get(key, how) if how else client.get(key), fine=(NOT_FOUND, FILTERED)
        )
        return None if found is None else (found[2], found[1]["gen"])

    def put(
        self,
        what: str,
        key: tuple[str, str, str],
        bins: dict[str, Any],
        how: dict[str, Any],
        generation: int | None = None,
    ) -> bool:
        """Writes one record; False when ``how`` did not allow it (there, absent, filtered, of another generation)."""
        meta = None if generation is None else {"gen": generation}
        done = self.call(
            what, lambda client: (client.put(key, bins, meta, how), True)[1],
            fine=(EXISTS, NOT_FOUND, FILTERED, GENERATION),
        )  # fmt: skip
        return bool(done)

    def apply(
        self, what: str, key: tuple[str, str, str], ops: list[Any], how: dict[str, Any], *, repeat: bool = True
    ) -> dict[str, Any] | None:
        """Applies operations to one record; the bins read, or None when ``how`` did not allow it."""
        found = self.call(
            what, lambda client: client.operate(key, ops, None, how), fine=(EXISTS, NOT_FOUND, FILTERED), repeat=repeat
        )  # fmt: skip
        return None if found is None else found[2]

    def discard(self, what: str, key: tuple[str, str, str]) -> bool:
        """Removes one record; False when it was absent."""
        return bool(self.call(what, lambda client: (client.remove(key), True)[1], fine=(NOT_FOUND,)))

    # -- the rest

    def index(self, set_name: str, bin_name: str, name: str, kind: str = "string") -> None:
        """An index of strings, or of numbers (``numeric``); one that is there already is fine."""

        # Not by the driver's own call, which sleeps until the index is filled; `select` can do without it so long.
        answer = self.info(
            f"sindex-create:ns={self.namespace};set={set_name};indexname={name};indexdata={bin_name},{kind}"
        )
        there = answer.lower() == "ok" or "200" in answer
        if not there and self.info(f"sindex-exists:namespace={self.namespace};indexname={name}") != "true":
            log.warning(
                event_text("index_missing", "no index %s, what it is for is found by scanning: the server said %r"),
                name,
                answer,
            )

    def select(self, what: str, set_name: str, bin_name: str, value: str) -> list[tuple[str, dict[str, Any]]]:
        """(user key, bins) of all records of a set whose indexed bin has this value."""

        def run(client: Any) -> list[Any]:
            query = client.query(self.namespace, set_name)
            query.where(predicates.equals(bin_name, value))
            return list(query.results())

        rows = self.call(what, run, fine=(INDEX_MISSING, INDEX_NOT_READABLE))
        if rows is None:
            # Just made, or lost: what an index would have found, more slowly.
            return [row for row in self.everything(what, set_name) if row[1].get(bin_name) == value]
        return [(row[0][2], row[2]) for row in rows]

    def between(
        self,
        what: str,
        set_name: str,
        bin_name: str,
        span: tuple[int, int],
        bins: Sequence[str],
        only_if: Any,
        most: int,
    ) -> tuple[list[tuple[str | None, dict[str, Any]]], bool]:
        """(user key, bins) of about ``most`` of the records of a set whose indexed bin is a number within the span, in no
        order; and whether these are all. ``only_if`` says the same as an expression, for the time in which the index cannot
        be asked: then all records of the set are looked at."""

        def ask(client: Any, where: Any) -> Any:
            query = client.query(self.namespace, set_name)
            query.select(*bins)
            query.max_records = most
            query.paginate()
            if where is not None:
                query.where(where)
                return query.results(), query.is_done()
            return query.results({"expressions": only_if}), query.is_done()

        where = predicates.between(bin_name, *span)
        found = self.call(what, lambda client: ask(client, where), fine=(INDEX_MISSING, INDEX_NOT_READABLE))
        if found is None:
            found = self.call(what, lambda client: ask(client, None))
        rows, done = found or ([], True)
        return [(row[0][2], row[2]) for row in rows], bool(done)

    def each_between(
        self, what: str, set_name: str, bin_name: str, span: tuple[int, int], only_if: Any,
        look: Callable[[str | None, int], None],
    ) -> None:  # fmt: skip
        """`between` for all of them, which may be more than memory holds: calls ``look(user key, value of the bin)``; for some
        again when the server had to be asked again."""

        def ask(client: Any, where: Any) -> bool:
            query = client.query(self.namespace, set_name)
            query.select(bin_name)
            how = {}
            if where is not None:
                query.where(where)
            else:
                how["expressions"] = only_if
            query.foreach(lambda row: look(row[0][2], row[2][bin_name]), how)
            return True

        where = predicates.between(bin_name, *span)
        if not self.call(what, lambda client: ask(client, where), fine=(INDEX_MISSING, INDEX_NOT_READABLE)):
            self.call(what, lambda client: ask(client, None))

    def everything(self, what: str, set_name: str) -> list[tuple[str, dict[str, Any]]]:
        """(user key, bins) of all records of a set."""
        rows = self.call(what, lambda client: client.query(self.namespace, set_name).results()) or []
        return [(row[0][2], row[2]) for row in rows]

    def each(
        self, what: str, set_name: str, bins: Sequence[str], look: Callable[[str | None, dict[str, Any]], None]
    ) -> None:
        """Calls ``look(user key, bins)`` for all records of a set, which may be more than memory holds; for some again when
        the server had to be asked again. Only the bins named; the key is None where it was not stored."""

        def ask(client: Any) -> None:
            query = client.query(self.namespace, set_name)
            query.select(*bins)
            query.foreach(lambda row: look(row[0][2], row[2]))

        self.call(what, ask)

    def info(self, command: str) -> str:
        """One node's answer to an info command, without the command's echo."""
        answer = self.call("info", lambda client: client.info_random_node(command))
        return str(answer or "").partition("\t")[2].strip()

    def info_of_nodes(self, command: str) -> dict[str, dict[str, str]]:
        """What each node that answers says to an info command, by the node's name: its figures, or ``{"": text}`` of a
        text without ``=``."""
        answers = self.call("info", lambda client: client.info_all(command)) or {}
        found = {}
        for node, (error, answer) in answers.items():
            if error is None:
                text = str(answer or "").rpartition("\t")[2].strip()  # some drivers echo the command
                found[str(node)] = (
                    dict(one.partition("=")[::2] for one in text.split(";")) if "=" in text else {"": text}
                )
        return found

    def record_limit(self) -> int:
        """Bytes that one record may have, 0 = not known."""
        try:
            settings = dict(
                one.partition("=")[::2]
                for one in self.info(f"get-config:context=namespace;id={self.namespace}").split(";")
            )
            return int(settings.get("max-record-size", "0"))
        except (IgnisError, ValueError):
            return 0

    def _figures(self, set_name: str) -> dict[str, str]:
        return dict(one.partition("=")[::2] for one in self.info(f"sets/{self.namespace}/{set_name}").split(":"))

    def objects(self, set_name: str) -> int:
        """Records of a set on one node, by its own account."""
        return int(self._figures(set_name).get("objects") or 0)

    def used_bytes(self, set_name: str) -> int:
        """Bytes of a set on one node, by its own account."""
        figures = self._figures(set_name)
        return int(figures.get("data_used_bytes") or figures.get("memory_data_bytes") or 0)

    def _count(self, what: str) -> None:
        with self._counting:
            self.calls[what] += 1


def _unanswered(entry: Entry) -> Entry:
    entry.result = NO_ANSWER
    return entry


def _config(hosts: Sequence[tuple[str, int]], options: AerospikeOptions) -> dict[str, Any]:
    limits = {
        "socket_timeout": options.socket_timeout_ms,
        "total_timeout": options.total_timeout_ms,
        "max_retries": 0,  # repeated here, where what must not be repeated is known
    }
    writing = {**limits, "key": SEND_KEY, "commit_level": _ALL}
    reading = {**limits, "replica": aerospike.POLICY_REPLICA_ANY}
    config: dict[str, Any] = {
        "hosts": [(host, port, options.tls_name) if options.tls_name else (host, port) for host, port in hosts],
        "max_conns_per_node": options.max_connections_per_node,
        "thread_pool_size": options.threads,
        "connect_timeout": options.socket_timeout_ms,
        "policies": {
            "read": reading,
            "write": writing,
            "operate": writing,
            "remove": writing,
            # One node after another would make a batch as slow as all nodes together.
            "batch": {**reading, "concurrent": True, "allow_inline": True},
            "batch_parent_write": {**limits, "concurrent": True, "allow_inline": True},
            "query": {"socket_timeout": options.socket_timeout_ms, "total_timeout": 0, "max_retries": 0},
            "info": {"timeout": options.total_timeout_ms},
        },
    }
    if options.user:
        config["user"], config["password"] = options.user, options.password
    if options.uses_tls:
        tls = {"cafile": options.tls_cafile, "certfile": options.tls_certfile, "keyfile": options.tls_keyfile}
        for value in filter(None, tls.values()):
            check_file(value, "TLS file of the store")
        config["tls"] = {"enable": True, **{name: value for name, value in tls.items() if value}}
    return config


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _in_child() -> None:
    for connection in list(_connections):
        connection.keep_for_ever()
    _connections.clear()
