# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, annotation_typing=False
"""The innermost loop of a worker: from one record to the next while nothing happens that somebody must be told of."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from ignis.native.histogram cimport Histogram
from ignis.native.record cimport Record, ign_record, ign_record_decode
from ignis.native.wait cimport ign_fork_generation, ign_now_ns

include "_errors.pxi"

cdef extern from "ignis_wait.h" nogil:
    void ign_fork_watch()

cdef extern from *:
    """
    /* The exception that was raised, with its traceback, which no frame of this file is added to: the handler's come first. */
    static PyObject *ignis_raised(void)
    {
    #if PY_VERSION_HEX >= 0x030C0000
        return PyErr_GetRaisedException();
    #else
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        if (trace != NULL)
            PyException_SetTraceback(value, trace);
        Py_XDECREF(trace);
        Py_XDECREF(type);
        return value;
    #endif
    }
    static PyObject *ignis_new(PyObject *type, PyObject *nothing)
    {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, nothing, NULL);
    }
    """
    object ignis_raised()
    object ignis_new(object type, object nothing)

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    PySendResult PyIter_Send(PyObject *iterator, PyObject *sent, PyObject **result)
    bint PyCoro_CheckExact(PyObject *one)
    object PyContext_CopyCurrent()
    int PyContext_Enter(object context) except -1
    int PyContext_Exit(object context) except -1
    const size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    PyObject *Py_None
    PyObject *Py_True
    PyObject *PyObject_Vectorcall(PyObject *call, PyObject **arguments, size_t count, PyObject *names)

WENT_ON = 0
ANSWERED = 1
RAISED = 2
UNREADABLE = 3
FORKED = 4
DATED = 5
SUSPENDED = 6
AWAITED = 7

cdef long long _MOST = <long long>1 << 62
cdef tuple _NOTHING = ()
cdef const char *_DEADLINE = b"\xadexpires_at_ms"  # behind the first byte of the map, which says how many entries it has
cdef size_t _DEADLINE_BYTES = 14


@cython.final
@cython.no_gc
cdef class Progress:
    """Where a worker is, for other threads to read, and what they want of it.

    `begin` and `cut` are each one step to other threads: what the one has begun the other does not take, and the other way round.
    """

    def __cinit__(self):
        self.end_id = _MOST

    def open(self, long long first_id, long long end_id):
        """The worker has these messages from now on, and has begun none."""
        self.next_id = first_id
        self.end_id = end_id

    def begin(self, long long request_id):
        """The worker's next message. False: it was taken from it, and so were those behind it."""
        if request_id >= self.end_id:
            return False
        self.at_id = request_id
        self.next_id = request_id + 1
        return True

    def cut(self):
        """Takes from the worker what it has not begun: returns (first id, behind the last)."""
        cdef long long end_id = self.end_id
        if self.next_id >= end_id:
            return end_id, end_id
        self.end_id = self.next_id
        return self.next_id, end_id

    def __reduce__(self):
        raise TypeError("a Progress cannot be pickled or copied")


cdef class Delivery:
    """What a call of a handler is told: the base of `ignis.Context`, made without a call of the interpreter's."""

    def __init__(self, messages, body, queue, attempt, resources):
        self._messages = messages
        self.body = body
        self.queue = queue
        self._attempt = attempt
        self.resources = resources
        self._items = None


cdef inline Delivery delivery_of(type kind, bytes data, object body, object queue, object resources, bint first):
    # first: nothing stands in the envelope that could count attempts
    cdef Delivery made = <Delivery?>ignis_new(kind, _NOTHING)
    made._messages = Record.__new__(Record, data)
    made.body = body
    made.queue = queue
    if first:
        made._attempt = 1
    made.resources = resources
    made._items = None
    return made


def open_bodies(decode, records):
    """The bodies of a batch of records; None where one needs a closer look: it cannot be read, or seems to have a deadline.

    Args:
        decode: from a body's bytes to the body; None = it is the bytes. What it raises counts as a body that cannot be read.
        records: a list of bytes.
    """
    cdef list held = records if type(records) is list else list(records)
    cdef list bodies = []
    cdef ign_record record
    cdef bytes data
    cdef object body
    for one in held:
        data = one
        if data is None:
            raise TypeError("a record is bytes, not None")
        if ign_record_decode(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), &record) != IGN_OK:
            return None
        if record.meta_len > _DEADLINE_BYTES and memcmp(record.meta + 1, _DEADLINE, _DEADLINE_BYTES) == 0:
            return None
        body = PyBytes_FromStringAndSize(<const char *>record.body, <Py_ssize_t>record.body_len)
        if decode is not None:
            try:
                body = decode(body)
            except Exception:
                return None
        bodies.append(body)
    return bodies


def all_done(answer, Py_ssize_t count):
    """Whether the answer of a batch handler says plainly that each of its ``count`` messages is done: it is None, True, or a list of
    that many of these."""
    cdef list answers
    if answer is None or answer is True:
        return True
    if type(answer) is not list:
        return False
    answers = <list>answer
    if len(answers) != count:
        return False
    for one in answers:
        if one is not None and one is not True:
            return False
    return True


def handle_records(fn, decode, kind, queue, resources, records, Py_ssize_t at, long long first_id, Progress progress not None,
                   double until_s, Histogram durations not None):
    """Calls the handler for the records from ``at`` on, until there is something to tell.

    Args:
        decode: from a body's bytes to the body; None = it is the bytes. May raise UnreadableMessageError.
        kind: the class of contexts, a subclass of `Delivery`; None for a handler that takes the body alone.
        records: a list of bytes.
        first_id: the id of the first record of the list; ``progress.at_id`` is always that of the record that is being handled.
        until_s: monotonic time; it is looked at behind each call.
        durations: counts how long each message took of which nothing is to be told. The others are the caller's to count.

    Returns (place, what, value, monotonic time at which that call began): `WENT_ON`: the place is that of the next record, for the time is
    over, ``progress.returning`` was set, it was taken from the worker (`Progress.cut`), or there is none. Otherwise it is of one that was `ANSWERED` with a value that is neither None nor
    True, whose call `RAISED` the value, or that was not handed to the handler: it is `UNREADABLE`, or `DATED`, which is for the caller to
    look at: it seems to have a deadline. `FORKED`: this is a child that the
    call forked off, and the value is what it raised there, or None.
    """
    ign_fork_watch()
    cdef unsigned int forks = ign_fork_generation()
    cdef list held = records if type(records) is list else list(records)
    cdef uint64_t now = ign_now_ns(), ended, until = <uint64_t>(until_s * 1e9)
    cdef PyObject *arguments[3]
    cdef PyObject *answer
    cdef size_t given = (1 if kind is None else 2) | PY_VECTORCALL_ARGUMENTS_OFFSET
    cdef ign_record record
    cdef bytes data
    cdef object body, context = None, value
    arguments[0] = NULL
    if at < 0:
        raise ValueError(f"there is no record {at}")
    while at < len(held) and not progress.returning:  # it is the caller's list, which others may shorten
        # As `Progress.begin` does it: others may have taken from here on.
        if first_id + at >= progress.end_id:
            break
        progress.at_id = first_id + at
        progress.next_id = first_id + at + 1
        data = held[at]
        if data is None:
            raise TypeError("a record is bytes, not None")
        if ign_record_decode(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), &record) != IGN_OK:
            return at, UNREADABLE, None, now / 1e9
        if record.meta_len > _DEADLINE_BYTES and memcmp(record.meta + 1, _DEADLINE, _DEADLINE_BYTES) == 0:
            return at, DATED, None, now / 1e9
        body = PyBytes_FromStringAndSize(<const char *>record.body, <Py_ssize_t>record.body_len)
        if decode is not None:
            try:
                body = decode(body)
            except _errors.UnreadableMessageError:
                return at, UNREADABLE, None, now / 1e9
        arguments[1] = <PyObject *>body
        if kind is not None:
            context = delivery_of(kind, data, body, queue, resources, record.meta_len == 0)
            arguments[2] = <PyObject *>context
        answer = PyObject_Vectorcall(<PyObject *>fn, &arguments[1], given, NULL)
        body = context = None  # they end with the call
        if ign_fork_generation() != forks:
            if answer == NULL:
                return at, FORKED, ignis_raised(), now / 1e9
            Py_DECREF(<object>answer)
            return at, FORKED, None, now / 1e9
        if answer == NULL:
            return at, RAISED, ignis_raised(), now / 1e9
        if answer != Py_None and answer != Py_True:
            value = <object>answer
            Py_DECREF(value)
            return at, ANSWERED, value, now / 1e9
        Py_DECREF(<object>answer)
        at += 1
        ended = ign_now_ns()
        durations._put(<double>(ended - now) * 1e-9, 1)
        now = ended
        if now >= until:
            break
    return at, WENT_ON, None, now / 1e9


def handle_coroutines(fn, decode, kind, queue, resources, records, Py_ssize_t at, long long first_id, Progress progress not None,
                      double until_s, Histogram durations not None, task):
    """`handle_records` for a coroutine function, within a task: each coroutine is run up to where it waits first, which most that are
    quick never do. Each has a copy of the context of its own.

    Args:
        decode: as there; False = the function takes the record as it is.
        task: the one that runs. It goes on to no other record once somebody wants to cancel it, or to be told of its end.

    It tells two things more. `SUSPENDED`: the coroutine waits, and the value is (coroutine, its context, what it waits for).
    `AWAITED`: the call gave something else, and the value is (that, its context).
    """
    ign_fork_watch()
    cdef unsigned int forks = ign_fork_generation()
    cdef list held = records if type(records) is list else list(records)
    cdef uint64_t now = ign_now_ns(), ended, until = <uint64_t>(until_s * 1e9)
    cdef PyObject *arguments[3]
    cdef PyObject *made
    cdef PyObject *result
    cdef PySendResult sent
    cdef bint whole = decode is False
    cdef size_t given = (1 if kind is None else 2) | PY_VECTORCALL_ARGUMENTS_OFFSET
    cdef ign_record record
    cdef bytes data
    cdef object body, delivery = None, context, coroutine, value
    arguments[0] = NULL
    if at < 0:
        raise ValueError(f"there is no record {at}")
    while at < len(held) and not progress.returning:
        progress.at_id = first_id + at
        data = held[at]
        if data is None:
            raise TypeError("a record is bytes, not None")
        if whole:
            body = data
        else:
            if ign_record_decode(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), &record) != IGN_OK:
                return at, UNREADABLE, None, now / 1e9
            if record.meta_len > _DEADLINE_BYTES and memcmp(record.meta + 1, _DEADLINE, _DEADLINE_BYTES) == 0:
                return at, DATED, None, now / 1e9
            body = PyBytes_FromStringAndSize(<const char *>record.body, <Py_ssize_t>record.body_len)
            if decode is not None:
                try:
                    body = decode(body)
                except _errors.UnreadableMessageError:
                    return at, UNREADABLE, None, now / 1e9
        arguments[1] = <PyObject *>body
        if kind is not None:
            delivery = delivery_of(kind, data, body, queue, resources, record.meta_len == 0)
            arguments[2] = <PyObject *>delivery
        context = PyContext_CopyCurrent()
        PyContext_Enter(context)
        made = PyObject_Vectorcall(<PyObject *>fn, &arguments[1], given, NULL)
        body = delivery = coroutine = None
        result = NULL
        sent = PYGEN_ERROR
        if made != NULL:
            coroutine = <object>made
            Py_DECREF(coroutine)
            if not PyCoro_CheckExact(made):
                PyContext_Exit(context)
                if ign_fork_generation() != forks:
                    return at, FORKED, None, now / 1e9
                return at, AWAITED, (coroutine, context), now / 1e9
            sent = PyIter_Send(made, Py_None, &result)
        if sent == PYGEN_ERROR:
            value = ignis_raised()
            PyContext_Exit(context)
            return at, FORKED if ign_fork_generation() != forks else RAISED, value, now / 1e9
        value = <object>result
        Py_DECREF(value)
        PyContext_Exit(context)
        if ign_fork_generation() != forks:
            return at, FORKED, None, now / 1e9
        if sent == PYGEN_NEXT:
            return at, SUSPENDED, (coroutine, context, value), now / 1e9
        coroutine = context = None  # they end with the call
        if value is not None and value is not True:
            return at, ANSWERED, value, now / 1e9
        at += 1
        ended = ign_now_ns()
        durations._put(<double>(ended - now) * 1e-9, 1)
        now = ended
        if now >= until or task._must_cancel or task._callbacks:
            break
    return at, WENT_ON, None, now / 1e9
