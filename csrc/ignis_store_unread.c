/* Reads segments of which the disk refuses a part.
 *
 * Bytes count as damaged only where that is certain: the file ends before them, or they were refused again and again while the disk itself,
 * past the page cache, gave other bytes between the refusals. A disk that is gone gives nothing: then the call gets the error, and can be made
 * again. Bytes that cannot be read are filled with ones, for which no checksum holds.
 *
 * A sector that is refused today may be read tomorrow. So before a message in it is reported as damaged, the segment's file gets a
 * second name, `damaged-log-`: when all in it is retired its first name is removed, and the bytes stay.
 */
#include "ignis_store_log.h"

#include <errno.h>
#include <string.h>

enum { BLOCK = 4096, TIMES = 3, PATIENT_BLOCKS = 4, OTHERS = 4 };

static const uint64_t pause_ns = 20000000;

typedef struct others {
    const char *but;
    char names[OTHERS][IGN_STORE_NAME_MAX];
    unsigned count;
} others;

static void look_at(void *arg, const char *name)
{
    others *found = arg;
    if (found->count < OTHERS && strcmp(name, found->but) != 0 && (strncmp(name, "log-", 4) == 0 || strncmp(name, "checkpoint-", 11) == 0))
        strcpy(found->names[found->count++], name);
}

/* Reads the first bytes of a file, from the disk itself where the machine can do that. */
static int probe(ign_store_io *io, const char *name)
{
    if (io->probe != NULL)
        return io->probe(io, name);
    uint8_t sector[IGN_LOG_SECTOR];
    int file, rc = io->open(io, name, false, &file);
    if (rc != 0)
        return rc;
    rc = io->read(io, file, sector, sizeof sector, 0);
    io->close(io, file);
    return rc;
}

/* Checks that the disk gives other bytes than those at `at` of that file. 0 or an errno. */
static int gives_others(ign_store_io *io, const char *name, uint64_t at)
{
#ifdef IGN_MUTANT_NO_PROBE
    return 0;
#endif
    int rc = at < BLOCK ? EIO : probe(io, name);
    others found = {.but = name};
    if (rc != 0)
        rc = io->list(io, look_at, &found) == 0 ? EIO : rc;
    for (unsigned i = 0; rc != 0 && i < found.count; i++)
        rc = probe(io, found.names[i]);
    return rc;
}

/* Reads a refused part of a block again. 0: *refused says whether it is still refused; an errno: that cannot be told. */
static int read_again(ign_store_io *io, const char *name, int file, uint8_t *to, uint64_t bytes, uint64_t at, bool patient, bool *refused)
{
    int rc = gives_others(io, name, at);
    *refused = true;
    for (int i = 0; rc == 0 && *refused && i < (patient ? TIMES : 1); i++) {
        _Atomic uint32_t nobody = 0;
        if (i > 0)
            io->wait(io, &nobody, 0, pause_ns);
        *refused = io->read(io, file, to, (size_t)bytes, at) != 0;
        rc = *refused ? gives_others(io, name, at) : 0;
    }
    return rc;
}

/* Gives a segment's file its second name. 0 or an errno; ENOENT: the file has no name any more. */
static int keep(ign_store_io *io, const char *name, uint64_t generation, uint64_t number)
{
#ifdef IGN_MUTANT_NOT_KEPT
    return 0;
#endif
    char kept[IGN_STORE_NAME_MAX], log[IGN_STORE_NAME_MAX] = "damaged-";
    ign_segment_name(kept, generation, number);
    strcat(log, kept);
    int rc = io->link_new(io, name, log);
    if (rc == 0)
        rc = io->flush_names(io);
    return rc == EEXIST ? 0 : rc;
}

int ign_segment_read(ign_store_io *io, int file, uint64_t generation, uint64_t number, uint8_t *to, uint64_t bytes, uint64_t at, uint64_t *missing)
{
    *missing = 0;
    int rc = bytes == 0 ? 0 : io->read(io, file, to, (size_t)bytes, at);
    if (rc == 0 || rc == ENOMEM)
        return rc;
    char name[IGN_STORE_NAME_MAX];
    uint64_t size;
    unsigned refused = 0;
    ign_segment_name(name, generation, number);
    rc = io->size(io, file, &size);
    for (uint64_t part; rc == 0 && bytes > 0; to += part, at += part, bytes -= part) {
        part = BLOCK - at % BLOCK < bytes ? BLOCK - at % BLOCK : bytes;
        uint64_t there = at >= size ? 0 : size - at < part ? size - at : part;
        if (there > 0 && io->read(io, file, to, (size_t)there, at) != 0) {
            bool still;
            rc = read_again(io, name, file, to, there, at, refused < PATIENT_BLOCKS, &still);
            there = still ? 0 : there;
            refused += still;
        }
        memset(to + there, 0xff, (size_t)(part - there));
        *missing += part - there;
    }
    return rc != 0 || refused == 0 ? rc : keep(io, name, generation, number);
}
