# The size classes of a slab in words of Python. Needs ign_slab.


cdef list slab_classes(const ign_slab *slab):
    """For each class the size of its slots, how many there are and how many are in use; none once the slab is closed."""
    cdef uint32_t c
    cdef list out = []
    for c in range(slab.table.class_count):
        count = slab.table.classes[c].count
        out.append({
            "slot_bytes": slab.table.classes[c].slot_bytes,
            "slots": count,
            "active": count - slab.free_count[c],
        })
    return out
