# The second half of channel.pyx: messages that are read where they lie.

cdef View new_view():
    global _making
    _making = True
    try:
        made = View.__new__(View)
    finally:
        _making = False
    return made


@cython.final
# Not the collector's: it would empty the view (tp_clear) before the slot is sent home, and its making would start a collection
# between the look at a message and the taking of it. What it refers to refers to nothing further.
@cython.no_gc
cdef class View:
    """A received message in place. Supports the buffer protocol (read-only), ``len`` and ``with``.

    ``release`` sends the slot home; so does the end of the object. Threads of the process may release views at any time. A view
    cannot be copied or pickled; ``tobytes`` makes a copy of the message.
    """

    def __cinit__(self):
        if not _making:
            raise TypeError("views come from Channel.recv_views()")

    def __dealloc__(self):
        if self._owner is not None:
            self._give_back()

    cdef void _give_back(self) noexcept:
        cdef Channel owner = self._owner
        self._owner = None
        owner._views -= 1
        if ign_region_check(&owner._channel.region) == IGN_OK:
            ign_channel_give_back(owner._channel, self._slot, self._generation)
        owner._finish()

    def __len__(self) -> int:
        return self._size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self._owner is None:
            raise _errors.ClosedError("the view was released")
        cdef int rc = ign_region_check(&self._owner._channel.region)
        if rc != IGN_OK:
            raise_code(rc, self._owner._name())
        PyBuffer_FillInfo(buffer, self, <void *>self._bytes, self._size, 1, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self._exports -= 1

    def tobytes(self) -> bytes:
        """A copy."""
        data = bytes(memoryview(self))
        if self._owner is not None:
            self._owner._check_region()  # zeros of a file that was cut are no message
        return data

    @property
    def released(self) -> bool:
        return self._owner is None

    def release(self) -> None:
        """Sends the slot home; idempotent. BufferError while a memoryview of it is alive."""
        if self._owner is None:
            return
        if self._exports:
            raise BufferError(f"{self._exports} memoryview(s) of this view are alive")
        self._give_back()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()
