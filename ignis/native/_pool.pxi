# The size classes of a slab in words of Python. Needs ign_slab.


cdef list slab_classes(const ign_slab *slab):
    """For each class the size of its slots, how many there are and how many are in use; none once the slab is closed."""
    cdef uint32_t figures[16][3]
    cdef uint32_t c, classes = slab.table.class_count
    cdef list out = []
    # All at one moment: making the answer may run Python, which may use or close the slab.
    for c in range(classes):
        figures[c][0] = slab.table.classes[c].slot_bytes
        figures[c][1] = slab.table.classes[c].count
        figures[c][2] = figures[c][1] - slab.free_count[c]
    for c in range(classes):
        out.append({"slot_bytes": figures[c][0], "slots": figures[c][1], "active": figures[c][2]})
    return out
