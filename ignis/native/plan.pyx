# cython: boundscheck=False, wraparound=False
"""Values that are what their type says: a look at each field, in place of reading the message back."""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, PyObject_GetAttr
from cpython.unicode cimport PyUnicode_CheckExact
from libc.math cimport isfinite
from libc.stdlib cimport free, malloc

import types

cdef extern from "structmember.h":
    enum: T_OBJECT_EX
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member

cdef enum:
    _NONE = 1
    _BOOL = 2
    _INT = 4
    _FLOAT = 8
    _STR = 16
    _BYTES = 32
    _ANYTHING = 64
    _MOST_DEPTH = 64

NONE, BOOL, INT, FLOAT, STR, BYTES = _NONE, _BOOL, _INT, _FLOAT, _STR, _BYTES
ANYTHING = _ANYTHING
"""Any of the above but bytes, and lists and dicts of such: what JSON has a form for."""


@cython.final
cdef class _Object:
    """The fields of one class."""

    cdef tuple names
    cdef tuple plans
    cdef Py_ssize_t *offsets
    """Where an object of exactly this class has its fields; -1 = it must be asked."""

    def __dealloc__(self):
        free(self.offsets)


@cython.final
cdef class Plan:
    """What a value may be so that it arrives as it was sent. Subclasses are never meant: they may write something else.

    Args:
        scalars: which plain types, as the sum of the constants above.
        items: of lists; None = no lists.
        values: of dicts whose keys are text; None = no dicts.
    """

    cdef int _scalars
    cdef Plan _items
    cdef Plan _values
    cdef dict _objects
    cdef object _kind
    cdef _Object _only

    def __cinit__(self, int scalars, Plan items=None, Plan values=None):
        if scalars & _ANYTHING:
            scalars |= _NONE | _BOOL | _INT | _FLOAT | _STR
            items = values = self
        self._scalars = scalars
        self._items = items
        self._values = values

    def add_object(self, object kind, tuple names, tuple plans):
        """Allows objects of exactly this class, whose attributes of these names fit these plans."""
        cdef _Object one = _Object()
        if not isinstance(kind, type) or len(names) != len(plans) or not all(isinstance(name, str) for name in names):
            raise ValueError("a class, and a plan for each of its names")
        if not all(isinstance(plan, Plan) for plan in plans):
            raise ValueError("a plan for each name")
        one.names, one.plans = names, plans
        one.offsets = <Py_ssize_t *>malloc(max(1, len(names)) * sizeof(Py_ssize_t))
        if one.offsets is NULL:
            raise MemoryError
        for at, name in enumerate(names):
            one.offsets[<Py_ssize_t>at] = _offset(kind, name)
        if self._objects is None:
            self._objects = {}
            self._kind, self._only = kind, one
        else:
            self._kind = self._only = None
        self._objects[kind] = one

    def holds(self, value):
        """Whether the value is such a one. False also where nothing is known; never raises for a value."""
        return _holds(self, <PyObject *>value, 0)


cdef Py_ssize_t _offset(object kind, str name) except -2:
    found = kind.__dict__.get(name)
    if not isinstance(found, types.MemberDescriptorType) or found.__objclass__ is not kind:
        return -1
    cdef PyMemberDef *member = (<PyMemberDescrObject *><PyObject *>found).d_member
    return member.offset if member.type == T_OBJECT_EX else -1


cdef inline int _scalar(PyObject *value) noexcept:
    """Its plain type, 0 = none of them, or a number that is not finite."""
    if PyUnicode_CheckExact(<object>value):
        return _STR
    if PyLong_CheckExact(<object>value):
        return _INT
    if <object>value is None:
        return _NONE
    if PyFloat_CheckExact(<object>value):
        return _FLOAT if isfinite(PyFloat_AS_DOUBLE(<object>value)) else 0
    if <object>value is True or <object>value is False:
        return _BOOL
    if PyBytes_CheckExact(<object>value):
        return _BYTES
    return 0


cdef bint _holds(Plan plan, PyObject *value, int depth) noexcept:
    cdef int kind = _scalar(value)
    if kind:
        return plan._scalars & kind
    if depth >= _MOST_DEPTH:
        return False
    one = <object>value
    try:
        if plan._only is not None and type(one) is plan._kind:
            return _holds_object(plan._only, one, depth)
        if type(one) is list:
            return plan._items is not None and _holds_list(plan._items, <list>one, depth)
        if type(one) is dict:
            return plan._values is not None and _holds_dict(plan._values, <dict>one, depth)
        found = None if plan._objects is None else plan._objects.get(type(one))
        return found is not None and _holds_object(<_Object>found, one, depth)
    except BaseException:  # a field that was deleted; what reads the message back says so
        return False


cdef bint _holds_list(Plan plan, list value, int depth) except -1:
    for one in value:
        if not _holds(plan, <PyObject *>one, depth + 1):
            return False
    return True


cdef bint _holds_dict(Plan plan, dict value, int depth) except -1:
    for key, one in value.items():
        if type(key) is not str or not _holds(plan, <PyObject *>one, depth + 1):
            return False
    return True


cdef bint _holds_object(_Object one, object value, int depth) except -1:
    cdef Py_ssize_t at
    cdef PyObject *field
    cdef tuple names = one.names, plans = one.plans
    for at in range(len(names)):
        if one.offsets[at] < 0:
            asked = PyObject_GetAttr(value, names[at])
            if not _holds(<Plan>plans[at], <PyObject *>asked, depth + 1):
                return False
            continue
        field = (<PyObject **>(<char *><PyObject *>value + one.offsets[at]))[0]
        if field is NULL or not _holds(<Plan>plans[at], field, depth + 1):
            return False
    return True
