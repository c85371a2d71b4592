# Paths from Python for C. Included by the modules that open files.

import os as _path_os


cdef tuple path_pair(object path):
    """A path as text, for messages, and as the bytes that C gets. ValueError when no file can have that name."""
    try:
        encoded = bytes(_path_os.fsencode(path))
    except UnicodeError:
        raise ValueError(f"no file can have this name: {path!r}") from None
    if 0 in encoded:
        raise ValueError(f"a path ends at a zero byte, so this one would name another file: {path!r}")
    return _path_os.fsdecode(encoded), encoded
