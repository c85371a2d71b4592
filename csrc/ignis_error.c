#include "ignis_error.h"

const char *ign_error_name(int code)
{
    switch (code) {
    case IGN_OK: return "IGN_OK";
    case IGN_EMPTY: return "IGN_EMPTY";
    case IGN_FULL: return "IGN_FULL";
    case IGN_NEED_MORE: return "IGN_NEED_MORE";
    case IGN_TIMEOUT: return "IGN_TIMEOUT";
    case IGN_E_INVALID: return "IGN_E_INVALID";
    case IGN_E_NOMEM: return "IGN_E_NOMEM";
    case IGN_E_IO: return "IGN_E_IO";
    case IGN_E_MAGIC: return "IGN_E_MAGIC";
    case IGN_E_VERSION: return "IGN_E_VERSION";
    case IGN_E_SIZE: return "IGN_E_SIZE";
    case IGN_E_TRUNCATED: return "IGN_E_TRUNCATED";
    case IGN_E_BUSY: return "IGN_E_BUSY";
    case IGN_E_NO_CLASS: return "IGN_E_NO_CLASS";
    case IGN_E_EXHAUSTED: return "IGN_E_EXHAUSTED";
    case IGN_E_DOUBLE_RELEASE: return "IGN_E_DOUBLE_RELEASE";
    case IGN_E_STALE: return "IGN_E_STALE";
    case IGN_E_FOREIGN: return "IGN_E_FOREIGN";
    case IGN_E_MALFORMED: return "IGN_E_MALFORMED";
    case IGN_E_TOO_LARGE: return "IGN_E_TOO_LARGE";
    case IGN_E_PEER_DEAD: return "IGN_E_PEER_DEAD";
    case IGN_E_CLOSED: return "IGN_E_CLOSED";
    case IGN_E_FORKED: return "IGN_E_FORKED";
    case IGN_E_CORRUPT: return "IGN_E_CORRUPT";
    case IGN_E_THREAD: return "IGN_E_THREAD";
    case IGN_E_NO_ROOM: return "IGN_E_NO_ROOM";
    case IGN_E_FAILED: return "IGN_E_FAILED";
    case IGN_E_MOVED: return "IGN_E_MOVED";
    case IGN_E_UNKNOWN: return "IGN_E_UNKNOWN";
    case IGN_E_MISMATCH: return "IGN_E_MISMATCH";
    case IGN_E_IN_DOUBT: return "IGN_E_IN_DOUBT";
    case IGN_E_LOST: return "IGN_E_LOST";
    case IGN_E_LEFT: return "IGN_E_LEFT";
    default: return "unknown code";
    }
}
