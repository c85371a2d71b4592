/* The codes that every primitive of the core returns.
 *
 * Results (>= 0) are ordinary answers: a full ring is not an error. Errors (< 0) are misuse, damage or the death of
 * the other side. A code never shares its integer with a value: values come back through out-parameters.
 * ignis/native/_errors.pxi turns each error into its exception; a test walks both lists.
 */
#ifndef IGNIS_ERROR_H
#define IGNIS_ERROR_H

enum {
    IGN_OK = 0,
    IGN_EMPTY = 1,      /* nothing to take */
    IGN_FULL = 2,       /* no room */
    IGN_NEED_MORE = 3,  /* the frame is not complete yet */
    IGN_TIMEOUT = 4,    /* a bounded wait ran out */

    IGN_E_INVALID = -1,        /* an argument outside its range */
    IGN_E_NOMEM = -2,
    IGN_E_IO = -3,             /* a system call failed: errno */
    IGN_E_MAGIC = -4,          /* not an ignis region */
    IGN_E_VERSION = -5,        /* another layout or record version */
    IGN_E_SIZE = -6,           /* sizes in the header contradict each other */
    IGN_E_TRUNCATED = -7,      /* the file is shorter than its header says, or shrank */
    IGN_E_BUSY = -8,           /* the role has a living owner */
    IGN_E_NO_CLASS = -9,       /* no size class fits */
    IGN_E_EXHAUSTED = -10,     /* the class has no free slot */
    IGN_E_DOUBLE_RELEASE = -11,
    IGN_E_STALE = -12,         /* generation of an earlier life */
    IGN_E_FOREIGN = -13,       /* reference outside the slab */
    IGN_E_MALFORMED = -14,
    IGN_E_TOO_LARGE = -15,
    IGN_E_PEER_DEAD = -16,
    IGN_E_CLOSED = -17,
    IGN_E_FORKED = -18,
    IGN_E_CORRUPT = -19,       /* checksum mismatch, or positions that cannot be */
    IGN_E_THREAD = -20,        /* debug builds: a second thread on a single-thread side */
    IGN_E_NO_ROOM = -21,       /* the disk or a quota is full; nothing was stored */
    IGN_E_FAILED = -22,        /* a write or flush of the store's log failed; nothing was stored */
    IGN_E_MOVED = -23,         /* the store's directory is another one now: moved, replaced or restored */
    IGN_E_UNKNOWN = -24,       /* no magazine of that number, or it was dropped */
    IGN_E_MISMATCH = -25,      /* the magazine exists with other settings */
    IGN_E_IN_DOUBT = -26,      /* stored or not: what would tell is gone */
    IGN_E_LOST = -27,          /* a part of the store's log is missing; nothing was changed */
    IGN_E_LEFT = -28,          /* stored, in a directory that is not in its place any more */
};

const char *ign_error_name(int code); /* static string, never NULL */

#endif
