# Part of record.pyx: where the bytes of a batch come from, a tuple of Python objects or a column.

cdef extern from "ignis_column.h" nogil:
    struct ArrowSchema:
        const char *format
        void *release

    struct ArrowArray:
        int64_t length
        void *release

    ctypedef struct ign_column:
        int64_t count
        size_t value_bytes
        bint wide

    int ign_column_open(const ArrowSchema *schema, const ArrowArray *array, ign_column *column)
    bint ign_column_get(const ign_column *column, int64_t i, const uint8_t **data, size_t *len)


cdef struct Source:
    PyObject *items             # a borrowed tuple of bytes or None, see `all_bytes`; NULL with a column, or without both
    ign_column column
    bint is_column


cdef inline const uint8_t *source_at(const Source *source, Py_ssize_t i, size_t *size) noexcept nogil:
    """Value i; no source, None and null are empty."""
    cdef const uint8_t *data = NULL
    if not source.is_column:
        return data_at(source.items, i, size)
    ign_column_get(&source.column, i, &data, size)
    return data


cdef int take_column(object array, str name, Source *source, list held) except -1:
    """Opens a column; what owns its memory is added to ``held``, which the caller keeps as long as the source."""
    cdef const ArrowSchema *schema
    cdef const ArrowArray *values
    cdef int code
    try:
        export = array.__arrow_c_array__
    except AttributeError:
        raise TypeError(f"{name} is {type(array).__name__}, expected a column with __arrow_c_array__") from None
    schema_capsule, array_capsule = export()
    held.append(schema_capsule)  # themselves: what they came in may change or go
    held.append(array_capsule)
    schema = <const ArrowSchema *>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
    values = <const ArrowArray *>PyCapsule_GetPointer(array_capsule, "arrow_array")
    if schema.release == NULL or values.release == NULL:
        raise ValueError(f"{name} is a column that was released already")
    code = ign_column_open(schema, values, &source.column)
    if code == IGN_E_INVALID:
        raise TypeError(f"{name} is a column of Arrow type {schema.format.decode()!r}, expected binary or text")
    if code != IGN_OK:
        raise ValueError(f"{name} is a column whose buffers contradict each other")
    source.is_column = True
    return 0


cdef int refuse_nulls(const Source *source, Py_ssize_t count, str name) except -1:
    cdef const uint8_t *data = NULL
    cdef size_t size = 0
    cdef Py_ssize_t i
    for i in range(count):
        if not ign_column_get(&source.column, i, &data, &size):
            raise ValueError(f"{name}[{i}] is null")
    return 0
