# What became of the messages that were sent, and the promises of each. Included by outbox.pyx.


@cython.no_gc_clear
cdef class ReceiptBook:
    """Counts what was sent and what is accounted for, and completes receipts in that order.

    It knows nothing of where messages lie. A kind of outbox says by `_refresh` what has become of its messages meanwhile, and
    by `_wait` how to wait for that.
    """

    def __cinit__(self, *arguments, **named):
        if type(self) is not Outbox and type(self) is not MappedOutbox:
            raise TypeError("use Outbox or MappedOutbox")
        self._failures = []
        self._heap = []
        self._waiting = {}

    def __reduce__(self):
        refuse_copy(self)

    # -- what a kind of outbox says

    cdef int _refresh(self) except -1:
        """Accounts for what became of messages by themselves."""
        return 0

    cdef int _check_process(self) except -1:
        """Raises ForkedHandleError in a child."""
        return 0

    cdef int _note_waiter(self) except -1:
        """Somebody waits for a message from now on."""
        return 0

    cdef object _timed_out(self, str text):
        """The error of a wait that took too long."""
        return _errors.WaitTimeoutError(text)

    @cython.final
    cdef object _not_durable(self, uint64_t sequence, object named):
        """The error of a wait of ``named`` seconds."""
        named = DEFAULT_TIMEOUT_S if named is None else named
        when = f"within {named:g} s" if named else "yet"
        return self._timed_out(f"message {sequence} of {self._sent} is not durable {when}")

    cdef int _wait(self, uint64_t sequence, uint64_t left, object named) except -1:
        """Waits ``left`` nanoseconds for that message. Here another thread settles it, and lets a lock go then.

        ``named``: the seconds that the error names.
        """
        lock = allocate_lock()
        lock.acquire()
        self._register(sequence, lock)
        if not lock.acquire(True, <double>left / 1e9) and self._settled < sequence:
            found = self._waiting.get(sequence)
            if found is not None and lock in found:
                found.remove(lock)
            raise self._not_durable(sequence, named)
        return 0

    # -- accounting

    @cython.final
    cdef int _fail_up_to(self, uint64_t last, object error) except -1:
        """Refuses the messages up to number ``last`` that are not accounted for yet."""
        cdef list entry = [0, 0, error]  # first, as it may run others' code: `settled` is looked at behind it
        cdef list before
        if last <= self._settled:
            return 0
        before = self._failures[len(self._failures) - 1] if self._failures else None
        if before is not None and before[1] == self._settled and before[2] is error:
            before[1] = last
        else:
            entry[0] = self._settled + 1
            entry[1] = last
            self._failures.append(entry)
        self._failed += last - self._settled
        if self._first_error is None:
            self._first_error = error
        return self._complete(last)

    @cython.final
    cdef int _complete(self, uint64_t settled) except -1:
        """Everything up to number ``settled`` is accounted for. No callback stops this, whatever it raises."""
        cdef dict by_loop = None
        self._settled = settled
        while self._heap and self._heap[0] <= settled:
            for waiter in self._waiting.pop(heapq.heappop(self._heap)):
                try:
                    if type(waiter) is not tuple:
                        waiter.release()  # the lock of a waiting thread
                    elif len(waiter) == 2:
                        waiter[0](waiter[1])
                    else:
                        if by_loop is None:
                            by_loop = {}
                        by_loop.setdefault(waiter[0], []).append((waiter[1], waiter[2]))
                except BaseException as error:
                    report(error, waiter[0] if type(waiter) is tuple else waiter)
        if by_loop is not None:
            for loop, pairs in by_loop.items():
                try:
                    loop.call_soon_threadsafe(_complete_futures, pairs)  # once per loop, however many wait there
                except RuntimeError:
                    pass  # the loop was closed: nobody waits any more
                except BaseException as error:
                    report(error, loop)
        return 0

    @cython.final
    cdef int _register(self, uint64_t sequence, object waiter) except -1:
        cdef list fresh = [waiter], found  # made before the look, as it may run others' code
        self._check_process()
        found = self._waiting.setdefault(sequence, fresh)
        if found is fresh:
            heapq.heappush(self._heap, sequence)
        else:
            found.append(waiter)
        if self._settled >= sequence:
            self._complete(self._settled)  # it was settled between the caller's look and here
        else:
            self._note_waiter()
        return 0

    @cython.final
    cdef object _error_of(self, uint64_t sequence):
        cdef Py_ssize_t at
        if not self._failures:
            return None
        at = bisect_left(self._failures, sequence, key=_last_of)
        if at < len(self._failures) and self._failures[at][0] <= sequence:
            return self._failures[at][2]
        return None

    @cython.final
    cdef bint _is_settled(self, uint64_t sequence) except -1:
        if self._settled < sequence:
            self._refresh()
        return self._settled >= sequence

    @cython.final
    cdef int _wait_for(self, uint64_t sequence, object timeout, object named) except -1:
        cdef uint64_t left = timeout_ns(timeout)
        if sequence > self._sent:
            raise ValueError(f"message {sequence} was never sent, the last is {self._sent}")
        if self._settled < sequence:
            self._wait(sequence, left, named)
        return 0

    def wait_settled(self, uint64_t sequence, timeout=30.0, named=None) -> None:
        """Waits until message number ``sequence`` (and so all before it) is durable or refused.

        ``named``: the seconds that the error names, where ``timeout`` is what is left of them.

        Raises:
            WaitTimeoutError, ForkedHandleError; ValueError when so many were never sent.
        """
        self._wait_for(sequence, timeout, timeout if named is None else named)

    @property
    def sent(self) -> int:
        """Messages sent so far, which is also the number of the last."""
        return self._sent

    @property
    def settled(self) -> int:
        """Messages accounted for, durable or refused: all up to this number."""
        self._refresh()
        return self._settled

    @property
    def pending(self) -> int:
        """Messages sent and not accounted for."""
        self._refresh()
        return self._sent - self._settled

    @property
    def failed(self) -> int:
        """Messages refused."""
        self._refresh()
        return self._failed

    def error_of(self, uint64_t sequence):
        """The error of message number ``sequence``; None: it is durable, or not accounted for."""
        return self._error_of(sequence)

    @property
    def first_error(self):
        """The error of the first refused message, or None."""
        return self._first_error


@cython.final
@cython.no_gc         # a collector that counted receipts would cost more than the sending; see traverse_waiting
@cython.freelist(4096)
cdef class Receipt:
    """The promise of one message: done when the message is durable, or refused.

    Made by :meth:`SendRing.send`. Safe from any thread; can be awaited in any event loop. Cannot be copied or pickled.
    """

    def __init__(self):
        raise TypeError("receipts come from Outbox.send()")

    def __reduce__(self):
        refuse_copy(self)

    cdef ReceiptBook _of(self):
        if self._outbox is None:
            raise TypeError("receipts come from Outbox.send(), not from Receipt.__new__")
        return self._outbox

    @property
    def id(self) -> str:
        """The message's id: the text of a UUIDv7, as `Message.id`. Made when asked for."""
        return text_of_id(self._id)

    @property
    def sequence(self) -> int:
        """Number of the message in its outbox; the first is 1."""
        return self._sequence

    def done(self) -> bool:
        """True once the message is durable or refused."""
        return self._of()._is_settled(self._sequence)

    cdef int _await_done(self, object timeout) except -1:
        cdef ReceiptBook outbox = self._of()
        _check_timeout(timeout)
        if outbox._settled < self._sequence:
            outbox._wait_for(self._sequence, timeout, timeout)
        return 0

    def result(self, timeout=30.0) -> str:
        """Waits until the message is durable and returns its id.

        Args:
            timeout: seconds, 0 or more; None is 30 s, a day is the most.

        Raises:
            What the store raised, when it refused the message. WaitTimeoutError, ForkedHandleError. ConfigError: no such
            timeout can be.
        """
        self._await_done(timeout)
        error = self._outbox._error_of(self._sequence)
        if error is not None:
            raise error
        return self.id

    def exception(self, timeout=30.0):
        """Waits until the message is durable (None) or refused (the error)."""
        self._await_done(timeout)
        return self._outbox._error_of(self._sequence)

    def add_done_callback(self, fn) -> None:
        """Calls ``fn(receipt)`` once it is done: in the flusher's thread, or here and now when it is already.

        What ``fn`` raises, of whatever kind, goes to ``sys.unraisablehook`` and no further.
        """
        cdef ReceiptBook outbox = self._of()
        if not callable(fn):
            raise TypeError(f"a callback is called with the receipt, {fn!r} cannot be")
        if not outbox._is_settled(self._sequence):
            outbox._register(self._sequence, (fn, self))
            return
        try:
            fn(self)
        except BaseException as error:
            report(error, fn)

    def __await__(self):
        if not self._of()._is_settled(self._sequence):
            import asyncio

            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._outbox._register(self._sequence, (loop, future, self))
            yield from future.__await__()
        return self.result(0)

    def __repr__(self) -> str:
        if self._outbox is None:
            return "<Receipt of nothing>"
        return f"<Receipt {self._sequence} {'done' if self.done() else 'pending'}>"


def _complete_futures(list pairs not None):
    """In the loop's thread: what became of the receipts that were awaited there."""
    for future, receipt in pairs:
        try:
            complete_future(future, <Receipt?>receipt)
        except BaseException as error:
            report(error, future)  # the others are completed all the same


cdef int complete_future(object future, Receipt receipt) except -1:
    if future.done():
        return 0
    error = receipt.exception(0)
    if error is None:
        future.set_result(receipt.id)
    else:
        future.set_exception(error)
    return 0


cdef int _check_timeout(object timeout) except -1:
    """Raises ConfigError for what is no number of seconds. The exact types first: whoever waits for receipts does so often."""
    if type(timeout) is float or type(timeout) is int:
        if timeout >= 0:
            return 0
    elif timeout is None:
        return 0
    elif isinstance(timeout, (float, int)) and not isinstance(timeout, bool) and timeout >= 0:
        return 0
    raise _errors.ConfigError(f"timeout = {repr(timeout)[:80]} is not a number of seconds, 0 or more")


def _last_of(failure):
    return failure[1]


cdef void report(object error, object where) noexcept:
    """A callback's exception is nobody's to catch: shown by ``sys.unraisablehook``, like that of a destructor."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(where)


# A receipt refers to its outbox, which the collector does not see. Those that only the outbox itself holds, because a callback or
# an `await` is registered, are references of the outbox to itself, and are shown as that: without, an outbox that nobody
# closed would never go.
cdef extern from *:
    """
    static int ign_visit_waiting(PyObject *waiting, PyObject *self, PyTypeObject *receipt, visitproc visit, void *arg)
    {
        PyObject *key, *waiters;
        Py_ssize_t at = 0;
        while (PyDict_Next(waiting, &at, &key, &waiters)) {
            /* All of one message hold the same receipt, and that refers to the outbox once. */
            PyObject *held = NULL;
            Py_ssize_t holders = 0;
            for (Py_ssize_t i = 0; i < PyList_GET_SIZE(waiters); i++) {
                PyObject *waiter = PyList_GET_ITEM(waiters, i);
                if (!PyTuple_CheckExact(waiter) || Py_REFCNT(waiter) != 1)
                    continue;
                held = PyTuple_GET_ITEM(waiter, PyTuple_GET_SIZE(waiter) - 1);
                holders++;
            }
            if (held != NULL && Py_TYPE(held) == receipt && Py_REFCNT(held) == holders) {
                int rc = visit(self, arg);
                if (rc != 0)
                    return rc;
            }
        }
        return 0;
    }
    """
    int ign_visit_waiting(PyObject *waiting, PyObject *self, PyTypeObject *receipt, visitproc visit, void *arg) noexcept


cdef int visit_book(PyObject *self, visitproc visit, void *arg) noexcept:
    """What each kind's ``tp_traverse`` shows beside its attributes."""
    if (<ReceiptBook>self)._waiting is None:
        return 0
    return ign_visit_waiting(<PyObject *>(<ReceiptBook>self)._waiting, self, <PyTypeObject *>Receipt, visit, arg)
