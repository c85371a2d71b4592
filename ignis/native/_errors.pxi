# From the codes of csrc/ignis_error.h to the exceptions of ignis.errors. Included by the extension modules.

import os as _os

from libc.errno cimport errno as _c_errno

from ignis import errors as _errors

cdef extern from "ignis_error.h" nogil:
    enum:
        IGN_OK
        IGN_EMPTY
        IGN_FULL
        IGN_NEED_MORE
        IGN_TIMEOUT
        IGN_E_INVALID
        IGN_E_NOMEM
        IGN_E_IO
        IGN_E_MAGIC
        IGN_E_VERSION
        IGN_E_SIZE
        IGN_E_TRUNCATED
        IGN_E_BUSY
        IGN_E_NO_CLASS
        IGN_E_EXHAUSTED
        IGN_E_DOUBLE_RELEASE
        IGN_E_STALE
        IGN_E_FOREIGN
        IGN_E_MALFORMED
        IGN_E_TOO_LARGE
        IGN_E_PEER_DEAD
        IGN_E_CLOSED
        IGN_E_FORKED
        IGN_E_CORRUPT
        IGN_E_THREAD
        IGN_E_NO_ROOM
        IGN_E_FAILED
        IGN_E_MOVED
        IGN_E_UNKNOWN
        IGN_E_MISMATCH
        IGN_E_IN_DOUBT
        IGN_E_LOST
        IGN_E_LEFT
    const char *ign_error_name(int code)


cdef dict _by_code = {
    IGN_E_MAGIC: (_errors.RegionFormatError, "not a file of this kind"),
    IGN_E_VERSION: (_errors.RegionFormatError, "layout of another version"),
    IGN_E_SIZE: (_errors.RegionFormatError, "sizes in the header contradict each other or what was asked for"),
    IGN_E_TRUNCATED: (_errors.RegionTruncatedError, "the file is shorter than its header says"),
    IGN_E_BUSY: (_errors.RegionBusyError, "the role has a living owner"),
    IGN_E_NO_CLASS: (_errors.NoSizeClassError, "no size class is large enough"),
    IGN_E_EXHAUSTED: (_errors.PoolExhaustedError, "the size class has no free slot"),
    IGN_E_DOUBLE_RELEASE: (_errors.DoubleReleaseError, "the buffer was released before"),
    IGN_E_STALE: (_errors.StaleReferenceError, "the reference is of an earlier life of its slot"),
    IGN_E_FOREIGN: (_errors.ForeignReferenceError, "the reference points outside the slab"),
    IGN_E_MALFORMED: (_errors.MalformedFrameError, "the bytes are not a frame"),
    IGN_E_TOO_LARGE: (_errors.MalformedFrameError, "a length over the limit"),
    IGN_E_PEER_DEAD: (_errors.PeerDiedError, "the process on the other side died"),
    IGN_E_CLOSED: (_errors.ClosedError, "closed"),
    IGN_E_FORKED: (_errors.ForkedHandleError, "the handle was made before fork(); open a new one in the child"),
    IGN_E_CORRUPT: (_errors.NativeError, "positions or words of the shared memory that cannot be"),
    IGN_E_THREAD: (_errors.NativeError, "a second thread on a side that belongs to one thread"),
    IGN_E_NO_ROOM: (_errors.StoreFullError, "the disk or a quota is full"),
    IGN_E_FAILED: (_errors.StoreFailedError, "a write or flush of the log failed"),
    IGN_E_MOVED: (_errors.StoreFailedError, "the directory was moved or replaced"),
    IGN_E_UNKNOWN: (_errors.QueueNotFoundError, "no such magazine"),
    IGN_E_MISMATCH: (_errors.QueueMismatchError, "the magazine exists with other settings"),
    IGN_E_IN_DOUBT: (_errors.StoreFailedError, "stored or not: what would tell is gone"),
    IGN_E_LOST: (_errors.StoreFormatError, "a part of the store's log is missing"),
    IGN_E_LEFT: (_errors.StoreFailedError, "stored in a directory that was moved or replaced meanwhile"),
}


cdef object error_of(int code, str what):
    """The exception for an error code; `what` names the object it is about."""
    if code == IGN_E_IO:
        number = _c_errno
        return _errors.RegionIOError(number, f"{_os.strerror(number)}", what)
    if code == IGN_E_NOMEM:
        return MemoryError(what)
    if code == IGN_E_INVALID:
        return ValueError(what)
    found = _by_code.get(code)
    if found is None:
        return _errors.NativeError(f"{what}: unexpected code {ign_error_name(code).decode()} ({code})")
    return found[0](f"{what}: {found[1]}")


cdef inline int raise_code(int code, str what) except -1:
    raise error_of(code, what)
