# What the doors of the extension modules have in common. Included by the modules.
#
# A method whose arguments can run Python code (`__index__`, `__float__`, `__fspath__`, an iteration), converts them first, then
# checks its own state, then touches its memory; and allocates nothing that the cyclic collector counts between the look and
# the touch, because a collection runs destructors, and these may call the same object.
# A class with C memory has no `tp_clear` (`no_gc_clear`): a collector that empties its attributes would leave a half of it
# behind. Containers of its own, a list or a dict, are what the collector empties instead.

import os as _arguments_os


cdef inline object refuse_copy(object self):
    """For `__reduce__`: a second object on the same C memory would free it twice."""
    raise TypeError(f"{type(self).__name__} cannot be pickled or copied: it holds memory of this process")


cdef inline bytes path_bytes(object path):
    """A path for the system; C would read one with a NUL byte as a shorter path."""
    cdef bytes encoded = _arguments_os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError(f"a path holds a NUL byte: {path!r}")
    return encoded
