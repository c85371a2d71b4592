# What a map of MessagePack may have for keys. Part of record.pyx; the walk is ``csrc/ignis_pack.c``.

cdef extern from "ignis_pack.h" nogil:
    enum:
        IGN_PACK_MAX_DEPTH

    ctypedef struct ign_pack_found:
        size_t at
        uint8_t byte

    int ign_pack_check(const uint8_t *src, size_t len, uint32_t max_integers, ign_pack_found *found)
    const char *ign_pack_kind(uint8_t byte)


def unsafe_keys(data, max_integers):
    """Why MessagePack that a stranger may have chosen must not be decoded without a type; None = it may be.

    Args:
        data: any contiguous buffer.
        max_integers: how many integers of 16 bits or more one map may have for keys, 0..2**32-1.

    Found are keys that are arrays, maps, floats or extensions, too many large integers, and more than 1,024 arrays and maps in one
    another. Where the data are cut short or no MessagePack, what stands before counts. Gives the GIL up for large buffers.
    """
    cdef uint32_t most = <uint32_t>in_range(max_integers, "max_integers", 0, UINT32_MAX)
    cdef ign_pack_found found
    cdef Input taken
    cdef int code
    take(data, &taken)
    if taken.size < NOGIL_FROM_BYTES:
        code = ign_pack_check(taken.data, taken.size, most, &found)
    else:
        with nogil:
            code = ign_pack_check(taken.data, taken.size, most, &found)
    give_back(&taken)
    if code == IGN_OK:
        return None
    if code == IGN_FULL:
        return f"arrays and maps are nested deeper than {IGN_PACK_MAX_DEPTH}, at byte {found.at}"
    if code == IGN_E_TOO_LARGE:
        return f"a map has more than {most} integers of 16 bits or more for keys, at byte {found.at}"
    kind = ign_pack_kind(found.byte).decode()
    return f"a map has {'an' if kind[0] in 'ae' else 'a'} {kind} for a key, at byte {found.at}; keys are text, bytes or integers"
