# From the codes of csrc/ignis_store.h to the exceptions of a store. Part of store.pyx.

import errno as _numbers

# The same words as in ignis/storage/os_errors.py, which stands above this package.
cdef frozenset _NO_ROOM = frozenset((_numbers.ENOSPC, _numbers.EDQUOT, _numbers.EFBIG))


cdef str because(str before, int number, str behind=""):
    """What the system says of that errno, between the two; nothing for 0, which is no reason."""
    return "" if number == 0 else f"{before}{_os.strerror(number)}{behind}"


cdef object system_error(int number, str what):
    """The exception for an errno of the system's."""
    text = f"store: {what}: {because('', number) or 'the disk refused, and it is not known why'}"
    if number in _NO_ROOM:
        return _errors.StoreFullError(text)
    if number == _numbers.EIO:
        return _errors.StoreFailedError(text)
    if number == _numbers.EMFILE or number == _numbers.ENFILE:
        text += " (ulimit -n)"
    return _errors.StoreUnreachableError(text)


cdef object lost_error(str what, str missing):
    return _errors.StoreFormatError(
        f"store: a part of the log in {what} is missing: {missing}. Nothing was changed; see what 'ignis doctor "
        f"{_os.path.dirname(what) or '.'}' says, or restore a backup"
    )


cdef str _other_place(str what):
    if _os.path.lexists(what):
        return "is another directory than the one that was opened"
    return "is not there any more, the directory that was opened was moved or removed"


cdef object transaction_error(uint64_t bytes, uint64_t limit):
    """Of a call that would be more than one entry of the log; half of that is for what is loaded."""
    return _errors.MessageTooLargeError(bytes, limit, "one transaction of an embedded store", "call")


cdef object log_error(int code, int number, Log log):
    """The exception for a code; ``number`` is the errno that came with it."""
    cdef str what = log.directory
    if code == IGN_E_NO_ROOM:
        if number == _numbers.ENOBUFS:
            return _errors.StoreFullError(
                f"store: {what} holds as many bytes of messages as it may: {log.max_bytes} (max_store_bytes)"
            )
        if number == _numbers.E2BIG:
            return GrowthError(f"store: disk full ({what}): messages may not grow when they are moved")
        if number == _numbers.EOVERFLOW:
            return _errors.StoreFullError(f"store: {what}: a shard of the magazine has given out all of its 2**62 pointers")
        return _errors.StoreFullError(f"store: disk full ({what}){because(': ', number)}")
    if code == IGN_E_FAILED:
        return _errors.StoreFailedError(
            f"store: {what}: the disk did not take a write or flush of the log{because(' (', number, ')')}; nothing was stored"
        )
    if code == IGN_E_MOVED:
        return _errors.StoreFailedError(f"store: {what} {_other_place(what)}; nothing was stored")
    if code == IGN_E_LEFT:
        return _errors.StoreFailedError(
            f"store: {what} {_other_place(what)}: it changed place while the call was made. What the call wrote is in the one that was "
            f"opened, and is found where that is put back"
        )
    if code == IGN_E_IN_DOUBT:
        return _errors.StoreFailedError(f"store: {what}: whether it was stored is not known: what would tell is gone")
    if code == IGN_E_LOST:
        return lost_error(what, "what the store was said to hold is in none of its files")
    if code == IGN_E_BUSY:
        return _errors.StoreBusyError(
            f"store: writer lock of {what} held by another for over {log.busy_after_s:g} s (write_timeout_s)"
        )
    if code == IGN_E_NOMEM:
        return _errors.StoreBusyError(f"store: {what}: no memory at the moment")
    if code == IGN_E_IO:
        return system_error(number, what)
    if code == IGN_E_MAGIC or code == IGN_E_VERSION or code == IGN_E_SIZE or code == IGN_E_TRUNCATED:
        return _errors.StoreFormatError(f"store: {what}: {_by_code[code][1]}; this build cannot read it, and left it as it was")
    if code == IGN_E_CORRUPT or code == IGN_E_MALFORMED:
        return _errors.StoreFormatError(f"store: {what} is damaged: what was read does not match its checksum")
    if code == IGN_E_UNKNOWN:
        return _errors.QueueNotFoundError(f"store: {what}: the magazine was dropped")
    if code == IGN_E_TOO_LARGE:
        # The calls that have data look at its size before, and say how much it is.
        return _errors.MessageTooLargeError(IGN_ENTRY_MAX + 1, IGN_ENTRY_MAX, "one entry of an embedded store's log", "call")
    if code == IGN_E_INVALID:
        return ValueError(f"store: {what}: an argument outside its range")
    return _errors.StoreError(f"store: {what}: unexpected code {ign_error_name(code).decode()} ({code})")
