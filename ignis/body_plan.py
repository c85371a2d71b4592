"""For which messages of a type it is known beforehand that they arrive as they were sent.

A `Plan` is made once, when the queue is. It proves a message by the exact types of its fields; whatever it does not know, a
subclass, a constraint, a type's own ``__post_init__``, a number that is not finite, it does not prove, and the message is read
back as the consumer will.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any

import msgspec
from msgspec import inspect as kinds

from ignis.native.plan import ANYTHING, BOOL, BYTES, FLOAT, INT, NONE, STR, Plan

__all__ = ["plan_of"]

_PLAIN: dict[type, int] = {
    kinds.NoneType: NONE, kinds.BoolType: BOOL, kinds.IntType: INT, kinds.FloatType: FLOAT, kinds.StrType: STR,
    kinds.BytesType: BYTES, kinds.AnyType: ANYTHING,
}  # fmt: skip


class _Unknown(Exception):
    """Nothing is known of messages of this type."""


def plan_of(kind: Any) -> Plan | None:
    """The plan for a type; None where none of its messages could be proved. Never raises."""
    try:
        return _node(kinds.type_info(kind), {})
    except Exception:  # of a type that the codec refuses, or that only it understands
        return None


def _node(info: Any, known: dict[type, Plan]) -> Plan:
    """``known``: of the classes that this is a part of."""
    if isinstance(info, kinds.Metadata):
        raise _Unknown
    members = info.types if isinstance(info, kinds.UnionType) else (info,)
    scalars, items, values = 0, None, None
    objects: list[Any] = []
    for one in members:
        if type(one) in _PLAIN:
            _check_free(one)
            scalars |= _PLAIN[type(one)]
        elif isinstance(one, kinds.ListType):
            _check_free(one)
            items = _node(one.item_type, known)
        elif isinstance(one, kinds.DictType):
            _check_free(one)
            if type(one.key_type) is not kinds.StrType:
                raise _Unknown
            _check_free(one.key_type)
            values = _node(one.value_type, known)
        elif isinstance(one, (kinds.StructType, kinds.DataclassType)):
            objects.append(one)
        else:
            raise _Unknown
    if len(members) == 1 and objects:
        return _object(objects[0], known)
    made = Plan(scalars, items, values)
    for one in objects:
        if one.cls in known:
            raise _Unknown  # one that may hold itself, in a union: not worth the trouble
        made.add_object(one.cls, *_fields(one, {**known, one.cls: made}))
    return made


def _check_free(info: Any) -> None:
    """Raises where the values are constrained."""
    for name in ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern"):
        if getattr(info, name, None) is not None:
            raise _Unknown


def _object(info: Any, known: dict[type, Plan]) -> Plan:
    if info.cls in known:
        return known[info.cls]
    made = Plan(0)
    made.add_object(info.cls, *_fields(info, {**known, info.cls: made}))  # its fields may hold one of it
    return made


def _own_access(cls: type) -> bool:
    return inspect.getattr_static(cls, "__getattribute__") is not object.__dict__["__getattribute__"]


def _fields(info: Any, known: dict[type, Plan]) -> tuple[tuple[str, ...], tuple[Plan, ...]]:
    cls: Any = info.cls
    if not isinstance(cls, type) or hasattr(cls, "__post_init__") or _own_access(cls):
        raise _Unknown
    names = tuple(one.name for one in info.fields)
    if isinstance(info, kinds.StructType):
        if not issubclass(cls, msgspec.Struct) or names != cls.__struct_fields__:
            raise _Unknown
    elif names != tuple(one.name for one in dataclasses.fields(cls) if one.init):
        raise _Unknown
    for name in names:
        # What the codec reads is the field itself, whatever a property of the name says.
        static = inspect.getattr_static(cls, name, None)
        if hasattr(type(static), "__set__") and not isinstance(static, types.MemberDescriptorType):
            raise _Unknown
    return names, tuple(_node(one.type, known) for one in info.fields)
