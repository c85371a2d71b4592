# cython: language_level=3


cdef class Progress:
    cdef public long long at_id
    cdef public bint returning


cdef class Delivery:
    cdef public object _messages
    cdef public object body
    cdef public object queue
    cdef public object attempt
    cdef public object resources
    cdef public object _items
    cdef public object _work
