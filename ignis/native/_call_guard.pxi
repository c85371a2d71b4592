# A call that its own thread must not make again meanwhile. Included by wire.pyx.

cdef extern from *:
    """
    static _Thread_local void *ignis_guards[4];
    static _Thread_local int ignis_guards_held;
    """
    void *ignis_guards[4]
    int ignis_guards_held

cdef enum:
    MOST_GUARDS = 4


@cython.final
@cython.no_gc
cdef class CallGuard:
    """``with guard:`` a call is under way in this thread. Another one within it, as a signal's handler makes one, raises
    `NestedCallError`; other threads, and other guards, are not held up."""

    def __enter__(self):
        global ignis_guards_held
        cdef int i
        for i in range(min(ignis_guards_held, <int>MOST_GUARDS)):
            if ignis_guards[i] == <void *>self:
                raise _errors.NestedCallError(
                    "a call over this connection is under way in this very thread, and a signal's handler makes another: set a "
                    "threading.Event there, or let another thread make the call (docs/broker.md)"
                )
        if ignis_guards_held < MOST_GUARDS:
            ignis_guards[ignis_guards_held] = <void *>self
        ignis_guards_held += 1

    def __exit__(self, kind, exc, trace):
        global ignis_guards_held
        ignis_guards_held -= 1

    def __reduce__(self):
        raise TypeError("a CallGuard cannot be pickled or copied")
