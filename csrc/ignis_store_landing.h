/* Where a call goes on when the control file is cut under its mapping, or the disk below it fails: it ends with an error, the
 * generation is left, and the next call makes or joins another generation.
 *
 * A call that touches shared memory sets a landing first. The handler of SIGBUS jumps to it; without one the page becomes zeros
 * (see ignis_region.h). No mutex is held while shared memory is touched, and nothing is allocated by the C library then.
 */
#ifndef IGNIS_STORE_LANDING_H
#define IGNIS_STORE_LANDING_H

#include <setjmp.h>

typedef struct ign_store ign_store;

typedef struct ign_generation ign_generation;

typedef struct ign_landing {
    sigjmp_buf here;
    ign_generation *entered[4]; /* behind this landing, and not left */
    struct ign_landing *outer;
} ign_landing;

void ign_landing_begin(ign_landing *landing, const ign_store *store);
void ign_landing_end(ign_landing *landing);
/* Behind the jump: the store looks for another generation. IGN_E_IO with EIO, or IGN_E_IN_DOUBT when an entry was being written. */
int ign_landing_fell(ign_store *store);
/* What a call entered behind its landing is left by the fall. */
void ign_landing_entered(ign_generation *generation);
void ign_landing_left(const ign_generation *generation);
/* For the handler: jumps, or returns when this thread has no landing. */
void ign_landing_leave(void);

/* The rest of the function; an error of the landing is handed to `fell`. */
#define IGN_LANDING(store, fell)                                              \
    ign_landing landing_ __attribute__((cleanup(ign_landing_end)));           \
    ign_landing_begin(&landing_, store);                                     \
    if (sigsetjmp(landing_.here, 0) != 0)                                     \
        return fell(ign_landing_fell(store)) /* `fell` may be empty */

#endif
