# A part of wire.pyx: a request of a client on whose connection nobody else waits, from its sending to its answer.

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() nogil


cdef double QUIET_S = 0.02
QUIET_CONNECTION_S = QUIET_S
"""Nothing has come for so long: then a look, before a request is entrusted to the connection, tells whether it still stands."""


def exchange_lone(connection, Outgoing outgoing not None, double timeout_s, commands not None, undo):
    """Sends a request with one call of the system and receives its answer with one, on a connection on which nobody waits.

    Args:
        connection: a `SyncConnection`.
        timeout_s: for the answer.
        commands: of answers that are taken here.
        undo: see `SyncConnection.cancel`.

    Returns the payload of the answer; (request id, slot, deadline) when something else came, or nothing so far, for the request of that
    number, whose answer the slot gets until that time; None when nothing was sent.
    """
    cdef object sending, lock, machine, slot = None, payload = None
    cdef FrameReader reader
    cdef ign_frame frame
    cdef int64_t request_id
    cdef ssize_t size = -1
    cdef ssize_t sent = 0
    cdef double heard_s = connection.heard_s, began_s
    cdef bint is_sending = True
    cdef int fd
    began_s = <double>ign_now_ns() / 1e9
    if began_s - heard_s > QUIET_S:
        connection._glance()
    fd = connection._transport.bare_fd
    sending = connection._sending
    if fd < 0 or not sending.acquire(False):
        return None
    try:
        machine, lock = connection.machine, connection._lock
        reader = machine.reader
        if reader is None:
            raise TypeError("a connection without a reader")
        lock.acquire()
        try:
            if connection._reader or connection._lost is not None or not machine.free:
                return None
            connection._reader = PyThread_get_thread_ident()
            request_id = machine.reserve()
        finally:
            lock.release()
        try:
            try:
                sent = outgoing.send_frame(fd, request_id)
                if <size_t>sent == outgoing.nbytes:
                    is_sending = False
                    sending.release()
                    size = receive_once(reader, fd)
                    if is_answer(reader, size, request_id, &frame) and frame.command in commands:
                        payload = PyBytes_FromStringAndSize(<const char *>frame.payload, <Py_ssize_t>frame.payload_len)
            finally:
                if payload is None:
                    slot = connection._adopt(request_id)
            if payload is not None:
                connection.heard_s = <double>ign_now_ns() / 1e9
                return payload
            if size >= 0:
                connection._took(size)
        except (OSError, _errors.IgnisError) as exc:
            connection.lose(str(exc), exc if isinstance(exc, _errors.IgnisError) else None)
        except BaseException:  # KeyboardInterrupt: the id must stay reserved
            if slot is not None:
                connection.cancel(request_id, slot, undo)
            raise
        finally:
            lock.acquire()
            try:
                if connection._parked or connection._lost is not None:
                    connection._pass_on()
                else:
                    connection._reader = 0
            finally:
                lock.release()
        if is_sending and connection._lost is None:
            connection._push(memoryview(outgoing.frame(request_id))[sent:], began_s + timeout_s)
        return request_id, slot, began_s + timeout_s
    finally:
        if is_sending:
            sending.release()
