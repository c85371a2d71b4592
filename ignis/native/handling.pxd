# cython: language_level=3


cdef class Progress:
    cdef public long long at_id         # of the message whose call is in progress or just ended
    cdef readonly long long next_id     # the first that has not begun
    cdef readonly long long end_id      # behind the last that is to begin
    cdef public bint returning


cdef class Delivery:
    cdef public object _messages
    cdef public object body
    cdef public object queue
    cdef public object _attempt         # None: that of the message
    cdef public object resources
    cdef public object _items
    cdef public object _last_error
    cdef public object _work
