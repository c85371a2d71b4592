"""Random calls of everything public in ``ignis.native``, with arguments that misbehave.

    python -m tests.unit.native.call_fuzz --seed 7              the one run of that number, as it was
    python -m tests.unit.native.call_fuzz --seconds 600         run after run, each in a process of its own

What may come out of a call is a result, one of `DECLARED`, or what an argument raised itself. Anything else, a process that
dies and a call that does not come back are failures; the last calls stand in the report. The arguments call back into the
objects while they are being converted, close them, and answer differently the second time; destructors do the same during
collections; a second thread does it meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ignis.errors import IgnisError
from ignis.native import channel, frame, intake, outbox, record, ring, slab, wait, wire

ROOT = Path(__file__).resolve().parents[3]
CALLS = 1_500
HANG_S = 60
FILE_BYTES = 1 << 26

MODULES = (channel, frame, intake, outbox, record, ring, slab, wait, wire)
CLASSES: dict[str, type] = {
    name: thing
    for module in MODULES
    for name, thing in vars(module).items()
    if isinstance(thing, type) and thing.__module__ == module.__name__ and not name.startswith("_")
}
ALL = tuple(CLASSES)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: thing
    for module in MODULES
    for name, thing in vars(module).items()
    if callable(thing) and not isinstance(thing, type) and not name.startswith("_")
    and getattr(thing, "__module__", module.__name__) == module.__name__
    and type(thing).__name__ in ("builtin_function_or_method", "cython_function_or_method")
}  # fmt: skip
DUNDERS = ("__enter__", "__len__", "__repr__", "__reduce__", "__await__")
SET = (("FrameReader", "max_frame_bytes"), ("ReadArea", "read_bytes"))


class InjectedError(Exception):
    """What a misbehaving argument raises by itself."""


class InjectedExitError(BaseException):
    """The same, of the kind that nobody catches by ``except Exception``."""


DECLARED = (
    IgnisError, TypeError, ValueError, OverflowError, BufferError, MemoryError, IndexError, RuntimeError, OSError,
    NotImplementedError, InjectedError, InjectedExitError,
)  # fmt: skip

# What a method takes, by kinds (see `Fuzz._value`). What is not listed gets a few values of any kind; whatever waits has to be
# listed, because its own default is half a minute.
TAKES: dict[str, tuple[str, ...]] = {
    "Channel.heap": ("=capacity:small", "=max_message_bytes:size"),
    "Channel.create": ("path", "=role:role", "=capacity:small", "=max_message_bytes:size"),
    "Channel.open": ("path", "=role:role", "=timeout:timeout"),
    "Channel.send": ("buffer", "int", "timeout"),
    "Channel.try_send": ("buffer", "int"),
    "Channel.send_many": ("buffers", "int", "timeout"),
    "Channel.recv": ("timeout",),
    "Channel.recv_with_kind": ("timeout",),
    "Channel.recv_many": ("int", "timeout"),
    "Channel.recv_views": ("int", "timeout"),
    "Channel.set_note": ("int", "int"),
    "Channel.get_note": ("int",),
    "Channel.close": ("timeout",),
    "Intake.open": ("path",),
    "Intake.hold": ("int", "int", "small", "codec"),
    "Intake.let_go": ("int",),
    "Intake.acknowledge": ("int",),
    "Bell.wait": ("intakes", "timeout"),
    "Outbox.send": ("bytes", "int", "codec", "bytes", "bytes", "timeout"),
    "Outbox.send_record": ("record", "timeout"),
    "Outbox.drain": ("small", "size", "int", "small", "timeout", "small", "size"),
    "Outbox.settle": ("int",),
    "Outbox.fail": ("int", "error"),
    "Outbox.wait_settled": ("int", "timeout"),
    "Outbox.close": ("error",),
    "MappedOutbox.send": ("bytes", "int", "codec", "bytes", "bytes", "timeout"),
    "MappedOutbox.send_record": ("record", "timeout"),
    "MappedOutbox.wait_settled": ("int", "timeout"),
    "MappedOutbox.watch": ("timeout",),
    "MappedOutbox.close": ("error",),
    "Receipt.result": ("timeout",),
    "Receipt.exception": ("timeout",),
    "Receipt.add_done_callback": ("callback",),
    "Ring.try_push": ("ref", "int"),
    "Ring.push_many": ("refs",),
    "Ring.commit": ("refs",),
    "Ring.pop_many": ("int",),
    "Ring.peek": ("int",),
    "Ring.reserve": ("int",),
    "Ring.release": ("int",),
    "Slab.allocate": ("size",),
    "Slab.release": ("slabref",),
    "Slab.write": ("slabref", "buffer"),
    "Slab.read": ("slabref",),
    "EventBoard.wait": ("int", "int", "timeout"),
    "EventBoard.notify": ("int",),
    "EventBoard.sequence": ("int",),
    "EventBoard.close": ("timeout",),
    "ThreadBell.wait": ("timeout",),
    "ThreadBell.put_off": ("timeout",),
    "ProcessMutex.acquire": ("timeout",),
    "ProcessMutex.close": ("timeout",),
    "FrameDecoder.feed": ("stream",),
    "FrameReader.feed": ("stream",),
    "FrameReader.received": ("int",),
    "FrameReader.arrived": ("int",),
    "ClaimsFrame.add": ("claims",),
    "ClaimsFrame.add_batch": ("int", "int", "batch"),
    "ClaimsFrame.frame": ("int", "int", "bytes"),
    "PackedBatch.pack": ("records", "int"),
    "PackedBatch.pack_bodies": ("records", "=flags:codec", "=keys:keys", "=shards:small", "=any_shard:int"),
    "PackedBatch.pack_columns": (
        "column",
        "=flags:codec",
        "=shards:small",
        "=any_shard:int",
        "=keys:column",
        "=metas:column",
    ),
    "PackedBatch.seal": ("int", "int", "int"),
    "PackedBatch.set_expiry": ("int",),
    "Record.replace": ("=attempts:int", "=crashes:int", "=meta:bytes"),
    "pack": ("intakes", "int", "small", "small", "size"),
    "encode_frame": ("int", "int", "buffer"),
    "encode_frames": ("int", "int", "buffers"),
    "encode_frames_ids": ("ints", "ints", "buffers"),
    "decode_frames": ("stream", "size"),
    "encode_record": ("buffer", "=flags:codec", "=key:bytes", "=meta:bytes", "=attempts:int"),
    "crc32c": ("buffer", "int"),
    "new_id": (),
    "id_text": ("bytes",),
    "shard_for_key": ("bytes", "small"),
    "unpack_segment": ("segment", "int", "int", "int", "int", "int", "bytes"),
    "segment_info": ("segment",),
    "segment_columns": ("parts", "int", "int"),
    "record_columns": ("records",),
    "position_ids": ("bytes", "int", "column"),
    "id_keys": ("batches", "bytes"),
    "process_start_time": ("int",),
    "process_alive": ("int", "int"),
    "route_batch": ("batch", "small", "int", "bytes"),
    "unpack_send_batch": ("buffer", "int"),
    "unsafe_keys": ("buffer", "int"),
    "encode_send_acks": ("bytes", "int", "int"),
    "pack_send_batch": ("bytes", "int", "pairs"),
    "Outgoing.load": ("bytes", "int", "int", "batch"),
    "Outgoing.load_body": ("bytes", "int", "int", "bytes", "codec"),
    "exchange_lone": ("any", "any", "int", "any", "any"),
    "pointer_in_ack": ("bytes",),
    "Outgoing.send": ("int", "int"),  # no descriptor of the process is a socket
    "Outgoing.frame": ("int",),
    "unpack_send_ack": ("bytes",),
    "receive_answer": ("any", "int", "int", "any"),
    "pack_pointers": ("pairs",),
    "unpack_runs": ("buffer", "int"),
    "count_runs": ("buffer", "int"),
    "runs_between": ("bytes", "int", "int", "int"),
    "pack_claims": ("claims",),
    "unpack_claims": ("claimbytes", "int"),
}

SEND = b"\x00\x01q" + bytes(8) + b"\x00\x05" + record.encode_record(b"body", key=b"k")


class Fuzz:
    """One run. ``trace`` gets a line before every call."""

    def __init__(self, seed: int, folder: str, trace: Callable[[str], None]) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.trace = trace
        self.depth = 0
        self.made = 0
        self.calls = 0
        self.refused = 0
        self.objects: dict[str, list[Any]] = {name: [] for name in ALL}
        self.lists: deque[list[Any]] = deque(maxlen=8)
        self.buffers: deque[bytearray] = deque(maxlen=8)
        self.outboxes: weakref.WeakSet[Any] = weakref.WeakSet()
        batch = record.PackedBatch.pack([record.encode_record(b"x" * n) for n in range(12)])
        batch.seal(1, 1, 0)
        self.segment = bytes(batch)

    # -- what misbehaves

    def act(self) -> None:
        """What an argument does while it is being looked at."""
        if self.depth >= 2:
            return
        self.depth += 1
        try:
            choice = self.random.randrange(8)
            if choice == 0:
                gc.collect(0)
            elif choice == 1 and self.lists:
                changed = self.random.choice(self.lists)
                self.random.choice([changed.clear, lambda: changed.append(None), changed.reverse])()
            elif choice == 2 and self.buffers:
                with contextlib.suppress(BufferError):
                    self.random.choice(self.buffers).extend(b"more")
            elif choice == 3:
                self.close_one()
            elif choice == 4 and self.depth < 2:
                raise self.random.choice([InjectedError, InjectedExitError])
            else:
                self.call_one()
        finally:
            self.depth -= 1

    def odd(self, inner: Any) -> Any:  # noqa: C901 - one method a way to misbehave
        """A value that may be of the wrong type, or do something while it is converted."""
        fuzz, pick = self, self.random

        class Odd:
            def _answer(self) -> Any:
                fuzz.act()
                return inner if pick.random() < 0.7 else pick.choice([0, 1, -1, 1 << 40])

            def __index__(self) -> int:
                found = self._answer()
                return found if isinstance(found, int) else 1

            __int__ = __index__

            def __float__(self) -> float:
                return min(0.01, abs(float(self.__index__())))

            def __len__(self) -> int:
                return abs(self.__index__()) % 1000

            def __iter__(self) -> Iterator[Any]:
                fuzz.act()
                for one in inner if isinstance(inner, (list, tuple)) else [inner]:
                    yield one
                    fuzz.act()

            def __getitem__(self, at: int) -> Any:
                fuzz.act()
                return inner[at] if isinstance(inner, (list, tuple)) else inner

            def __fspath__(self) -> str:
                fuzz.act()
                return inner if isinstance(inner, str) else "nowhere/at/all"

            def __lt__(self, other: Any) -> bool:
                fuzz.act()
                return pick.random() < 0.5

            __gt__ = __le__ = __ge__ = __lt__

            def __arrow_c_array__(self, requested: object = None) -> Any:
                fuzz.act()
                return pick.choice([None, (), (1, 2), [object(), object()], inner])

        class OddInt(int):
            def __index__(self) -> int:
                fuzz.act()
                return int(self)

        choice = pick.randrange(14)
        plain = [None, -1, 1 << 70, 1 << 31, 2**63 - 1, 2**64 - 1, float("nan"), "text", b"", object(), [], {}, 1.5]
        if choice < 7:
            return pick.choice(plain)
        if choice == 7 and isinstance(inner, int):
            return OddInt(inner)
        if choice == 8:
            return iter(Odd())
        if choice == 9 and isinstance(inner, list):
            return tuple(inner)
        return Odd()

    def leave_trash(self) -> None:
        """Garbage whose destructor calls us, at the next collection, wherever that happens."""

        class Trash:
            def __del__(self) -> None:
                with contextlib.suppress(*DECLARED):
                    fuzz.act()

        fuzz = self
        for _ in range(self.random.randrange(1, 6)):
            one = Trash()
            one.me = one  # type: ignore[attr-defined]

    # -- arguments

    def path(self) -> str:
        return f"{self.folder}/{self.random.choice('abcdef')}"

    def fresh_path(self) -> str:
        self.made += 1
        return f"{self.folder}/made-{self.made}"

    def value(self, kind: str) -> Any:
        """A value of a kind that a method takes, one time in five another one."""
        found = getattr(self, f"_{kind}")() if kind != "any" else self._int()
        if isinstance(found, list):
            self.lists.append(found)
        if self.random.random() < 0.2:
            return self.odd(found)
        return found

    def _int(self) -> Any:
        return self.random.choice([0, 0, 1, 1, 2, 3, 5, 11, 60, 255, 65535, 1 << 20])

    def _small(self) -> Any:
        return self.random.choice([1, 2, 4, 16, 64])

    def _size(self) -> Any:
        return self.random.choice([0, 1, 14, 100, 4096, 1 << 16, 1 << 20])

    def _codec(self) -> Any:
        return self.random.choice([0, 0, 0, 1, 2, 15, 16])

    def _role(self) -> Any:
        return self.random.choice(["producer", "consumer"])

    def _timeout(self) -> Any:
        return self.random.choice([0, 0, 0, 0.0, 0.001, 0.003])

    def _path(self) -> Any:
        found = self.path()
        return self.random.choice([found, found, found, found + "\0more", os.fsencode(found), Path(found)])

    def _bytes(self) -> Any:
        return self.random.choice([b"", b"x", b"key", b"p" * 6, b"y" * 100, b"z" * 3000, bytes(80), None])

    def _record(self) -> Any:
        return self.random.choice([record.encode_record(b"b" * self._size(), key=b"k"), b"none", bytes(36)])

    def _buffer(self) -> Any:
        found = bytearray(b"w" * self.random.choice([0, 1, 20, 2000, 70_000]))
        self.buffers.append(found)
        view = memoryview(bytes(64))
        return self.random.choice([bytes(found), found, memoryview(found), view[::2], view.cast("I"), self.batch()])

    def batch(self) -> Any:
        found = self.objects["PackedBatch"]
        return self.random.choice(found) if found else b""

    def many(self, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self.random.choice([0, 1, 2, 5, 40]))]

    def _buffers(self) -> Any:
        return self.many(lambda: b"m" * self.random.choice([0, 1, 300, 5000]))

    def _ints(self) -> Any:
        return self.many(self._int)

    def _records(self) -> Any:
        return self.many(lambda: record.encode_record(b"r" * self.random.choice([0, 7, 900])))

    def _keys(self) -> Any:
        return self.random.choice([None, self.many(lambda: b"k")])

    def _column(self) -> Any:
        return self.random.choice([None, self.odd((None, None))])

    def _intakes(self) -> Any:
        return self.random.sample(self.objects["Intake"], min(len(self.objects["Intake"]), 2))

    def _batch(self) -> Any:
        return self.batch()

    def _batches(self) -> Any:
        return list(self.objects["PackedBatch"])

    def _error(self) -> Any:
        return self.random.choice([InjectedError("refused"), ValueError("no"), None])

    def _callback(self) -> Any:
        def call(*_: object) -> None:
            self.act()

        return self.random.choice([call, call, print_nothing, None])

    def _ref(self) -> Any:
        return (self._int(), self._int(), self._int(), self._int())

    def _refs(self) -> Any:
        return self.many(lambda: (self._ref(), 1))

    def _slabref(self) -> Any:
        for one in self.objects["Slab"]:
            with contextlib.suppress(*DECLARED):
                return one.allocate(10)
        return self._ref()

    def _stream(self) -> Any:
        frames = [
            frame.encode_frame(wire.COMMAND_SEND, n, SEND) if self.random.random() < 0.5
            else frame.encode_frame(n % 50, n, b"p" * self.random.choice([0, 20, 3000]))
            for n in range(self.random.choice([0, 1, 3, 80]))
        ]  # fmt: skip
        found = bytearray(b"".join(frames))
        if found and self.random.random() < 0.3:
            found[self.random.randrange(len(found))] ^= 1 << self.random.randrange(8)
        if self.random.random() < 0.3:
            del found[self.random.randrange(len(found) + 1) :]
        return self.random.choice([bytes(found), found])

    def _segment(self) -> Any:
        found = bytearray(self.segment)
        if self.random.random() < 0.5:
            found[self.random.randrange(len(found))] ^= 1 << self.random.randrange(8)
        return self.random.choice([self.segment, found, bytes(found), bytes(found[:40])])

    def _parts(self) -> Any:
        return self.many(lambda: self.value("part"))

    def _part(self) -> Any:
        start, stop = self.random.randrange(6), self.random.randrange(6, 13)
        return [self._segment(), 0, 11, start, stop, self.random.choice([None, b"\x05"])]

    def _pairs(self) -> Any:
        return self.random.choice(
            [{1: range(5), 2: [5, 3, 4]}, self.many(lambda: (self.value("int"), self.value("ints")))]
        )

    def _claims(self) -> Any:
        def claim() -> Any:
            count = self.random.choice([0, 1, 5, 300])
            records = [self.random.choice([b"r" * 9, None]) for _ in range(count)]
            self.lists.append(records)
            pointers = self.odd(list(range(count))) if self.random.random() < 0.3 else range(count)
            return (self.value("int"), pointers, records)

        return self.many(claim)

    def _claimbytes(self) -> Any:
        found = bytearray(wire.pack_claims([(1, [1, 2, 9], [b"a", None, b"c" * 50]), (2, range(3), [b"x"] * 3)]))
        if self.random.random() < 0.6:
            found[self.random.randrange(len(found))] ^= 1 << self.random.randrange(8)
        self.buffers.append(found)
        return self.random.choice([found, bytes(found)])

    # -- objects

    def make(self, name: str) -> None:  # noqa: C901 - one branch a class
        """One more object of a class, usable or bare."""
        found: Any = None
        if self.random.random() < 0.05:
            self.keep(name, CLASSES[name].__new__(CLASSES[name]))
            return
        if name == "Channel":
            found = self._make_channel()
        elif name == "Outbox":
            found = outbox.Outbox(capacity=self._small(), max_message_bytes=4096)
        elif name == "MappedOutbox":
            found = self._make_mapped_outbox()
        elif name == "Intake":
            found = intake.Intake.open(self.path())
        elif name == "Bell":
            found = intake.Bell(f"{self.folder}/bell")
        elif name == "EventBoard":
            found = wait.EventBoard(self.random.choice([None, f"{self.folder}/board"]), 8)
        elif name == "ThreadBell":
            found = wait.ThreadBell()
        elif name == "ProcessMutex":
            found = wait.ProcessMutex(f"{self.folder}/mutex{self.random.randrange(3)}")
        elif name == "FrameReader":
            if not self.objects["ReadArea"] or self.random.random() < 0.2:
                self.make("ReadArea")
            area = self.random.choice(self.objects["ReadArea"])
            found = wire.FrameReader(area, self.value("size"), self.random.random() < 0.5)
        elif name == "ClaimsFrame":
            found = wire.ClaimsFrame()
        elif name == "Outgoing":
            found = wire.Outgoing(11, b"payload")
            if self.objects["PackedBatch"]:
                found = wire.Outgoing.load(b"q", 0, 1, self.random.choice(self.objects["PackedBatch"]))
        elif name == "ReadArea":
            found = wire.ReadArea(self.random.choice([4096, 1 << 16]))
        elif name == "FrameDecoder":
            found = frame.FrameDecoder(self.random.choice([14, 4096, 1 << 20]))
        elif name == "Ring":
            found = ring.Ring(self._small())
        elif name == "Slab":
            found = slab.Slab([(64, 4), (4096, 2)])
        elif name == "Record":
            found = record.Record(self._record())
        elif name == "PackedBatch":
            found = record.PackedBatch.pack(self._records() or [b"r"])
        elif name == "BufferRef":
            found = slab.BufferRef(0, 0, 0, 0)
        else:
            return  # made by methods of others: View, Receipt
        self.keep(name, found)

    def _make_channel(self) -> Any:
        options: dict[str, Any] = {
            "capacity": 16,
            "max_message_bytes": 4096,
            "bytering_bytes": self.random.choice([0, 2048]),
        }
        if self.random.random() < 0.5:
            return channel.Channel.heap(**options)
        if self.random.random() < 0.5:
            return channel.Channel.open(self.path(), role=self._role())
        return channel.Channel.create(self.path(), role=self._role(), **options)

    def _make_mapped_outbox(self) -> Any:
        path = self.path()
        if self.random.random() < 0.5:
            with contextlib.suppress(OSError):
                os.unlink(path)
        found = outbox.MappedOutbox(
            capacity=16, max_message_bytes=4096, path=path, bell=f"{self.folder}/bell", bytering_bytes=2048
        )
        hook = self.random.choice([None, self.act, found.close])
        found.on_waiter = hook
        if self.random.random() < 0.2:
            found.on_timeout = lambda text: self.act() or InjectedError(text)
            found.on_refusal = lambda: self.act() or InjectedError("refused")
        return found

    def keep(self, name: str, one: Any) -> None:
        kept = self.objects[name]
        kept.append(one)
        if name in ("Outbox", "MappedOutbox"):
            self.outboxes.add(one)
        if len(kept) > (12 if name in ("View", "Receipt") else 4):
            kept.pop(self.random.randrange(len(kept)))

    def close_one(self) -> None:
        name = self.random.choice(
            ["Channel", "Outbox", "MappedOutbox", "Intake", "Bell", "EventBoard", "ProcessMutex", "FrameReader", "Slab"]
        )
        if self.objects[name]:
            one = self.random.choice(self.objects[name])
            self.trace(f"{'  ' * self.depth}{name}.close()")
            with contextlib.suppress(*DECLARED):
                one.close(0.01) if name in ("Channel", "EventBoard", "ProcessMutex") else one.close()

    # -- calls

    def call_one(self) -> None:
        """One random call, whatever its outcome. What comes out and is not declared is raised."""
        if self.random.random() < 0.1:
            gc.set_threshold(self.random.choice([5, 20, 77, 300, 700]))
            self.leave_trash()
        if self.random.random() < 0.3:
            name = self.random.choice(list(FUNCTIONS))
            self._call(name, FUNCTIONS[name])
            return
        name = self.random.choice(list(CLASSES))
        if not self.objects[name] or self.random.random() < 0.15:
            self._try(f"make {name}", lambda: self.make(name))
        if not self.objects[name]:
            return
        one = self.random.choice(self.objects[name])
        methods = [found for found in dir(CLASSES[name]) if not found.startswith("_") or found in DUNDERS]
        method = self.random.choice(methods)
        if method in DUNDERS and not hasattr(CLASSES[name], method):
            return
        if self.random.random() < 0.03:
            self._try(f"memoryview({name})", lambda: bytes(memoryview(one))[:1])
        self._attribute(name, one, method)

    def _attribute(self, name: str, one: Any, method: str) -> None:
        if not callable(getattr(CLASSES[name], method)):
            self._try(f"{name}.{method}", lambda: getattr(one, method))
            if (name, method) in SET:
                value = self.value("int")
                self._try(f"{name}.{method} = {type(value)}", lambda: setattr(one, method, value))
            return
        self._call(f"{name}.{method}", getattr(one, method))

    def _call(self, name: str, call: Callable[..., Any]) -> None:
        kinds = TAKES.get(name)
        if kinds is None:
            kinds = ("any",) * self.random.choice([0, 0, 0, 1, 2])
        args, named = [], {}
        for kind in kinds:
            if kind.startswith("="):
                key, _, of_it = kind[1:].partition(":")
                named[key] = self.value(of_it)
            else:
                args.append(self.value(kind))
        # The last ones may be left out, but not what says how long to wait.
        if args and "timeout" not in kinds and self.random.random() < 0.1:
            args.pop()
        # None is the default of half a minute, and a huge number is taken at its word.
        if "timeout" in kinds and _is_long(args[kinds.index("timeout")]):
            args[kinds.index("timeout")] = 0
        if "timeout" in named and _is_long(named["timeout"]):
            named["timeout"] = 0
        found = self._try(
            f"{name}({', '.join(type(a).__name__ for a in args)}, {list(named)})", lambda: call(*args, **named)
        )
        for one in found if type(found) is list else [found]:
            if type(one).__name__ in self.objects:
                self.keep(type(one).__name__, one)

    def _try(self, what: str, call: Callable[[], Any]) -> Any:
        self.trace(f"{'  ' * self.depth}{what}")
        self.calls += 1
        try:
            return call()
        except DECLARED:
            self.refused += 1
            return None
        except Exception as error:
            raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error

    def run(self, calls: int) -> None:
        ended = threading.Event()
        failures: list[BaseException] = []
        if self.random.random() < 0.5:
            other = threading.Thread(target=self._beside, args=(ended, failures))
            other.start()
        try:
            while self.calls < calls:
                self.call_one()
        finally:
            ended.set()
            gc.set_threshold(700)
        self.check_end(failures)

    def _beside(self, ended: threading.Event, failures: list[BaseException]) -> None:
        """The second thread."""
        try:
            while not ended.wait(0.002):
                self.act() if self.random.random() < 0.5 else self.close_one()
        except DECLARED:
            pass
        except BaseException as error:
            failures.append(error)

    def check_end(self, failures: list[BaseException]) -> None:
        """Everything can be closed, and nothing stays behind."""
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(HANG_S)
        if failures:
            raise failures[0]
        for name in ("Outbox", "MappedOutbox", "Intake", "Bell"):
            for one in self.objects[name]:
                with contextlib.suppress(*DECLARED):
                    one.close()
        for kept in self.objects.values():
            kept.clear()
        self.lists.clear()
        self.depth = 99  # destructors do nothing any more
        for _ in range(3):
            gc.collect()
        # An error that a receipt raised holds the frames it went through, and these may hold receipts, which the collector does
        # not look into.
        left = sum(box.first_error is None for box in self.outboxes)
        assert not left, f"{left} outbox(es) are never collected"


def _is_long(timeout: Any) -> bool:
    return timeout is None or (isinstance(timeout, (int, float)) and timeout > 0.01)


def print_nothing(*_: object) -> None:
    """A callback without any effect."""


def run_here(seed: int, calls: int) -> None:
    """The run of one seed, in this process."""
    faulthandler.dump_traceback_later(HANG_S * 3, exit=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    sys.unraisablehook = print_nothing
    last: deque[str] = deque(maxlen=40)
    shown = os.environ.get("IGNIS_TEST_FUZZ_TRACE")

    def trace(line: str) -> None:
        last.append(line)
        if shown:
            os.write(2, line.encode() + b"\n")

    with tempfile.TemporaryDirectory(prefix="ignis-fuzz-") as folder:
        fuzz = Fuzz(seed, folder, trace)
        try:
            fuzz.run(calls)
        except BaseException:
            print(*last, sep="\n", file=sys.stderr)
            raise
    faulthandler.cancel_dump_traceback_later()
    print(f"seed {seed}: {fuzz.calls} calls, {fuzz.refused} refused")


def run_apart(
    seed: int, calls: int = CALLS, *, without: Sequence[str] = (), timeout_s: float = HANG_S * 4
) -> subprocess.CompletedProcess[str]:
    """The run of one seed in a process of its own: what is looked for may take the process with it."""
    command = [sys.executable, "-m", "tests.unit.native.call_fuzz", "--seed", str(seed), "--calls", str(calls)]
    if without:
        command += ["--without", *without]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, -1, "", f"no end within {timeout_s} s\n{error.stderr!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--without", nargs="*", default=[], help="classes that are left out")
    args = parser.parse_args()
    for name in args.without:
        del CLASSES[name]
    if args.seed is not None:
        run_here(args.seed, args.calls)
        return 0
    until = time.monotonic() + args.seconds
    failed = 0
    while time.monotonic() < until:
        seed = random.SystemRandom().randrange(1 << 32)
        done = run_apart(seed, args.calls, without=args.without)
        if done.returncode != 0:
            failed += 1
            print(f"seed {seed} exit {done.returncode}\n{done.stdout[-500:]}{done.stderr[-3000:]}", flush=True)
    print(f"{failed} run(s) failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
