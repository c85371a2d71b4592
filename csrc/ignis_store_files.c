/* Segments' files that this process holds open: the one that is written, so that a flush opens nothing, and some to read. */
#include "ignis_store_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void ign_store_file_name(char name[IGN_STORE_NAME_MAX], const char *kind, uint64_t a, uint64_t b)
{
    snprintf(name, IGN_STORE_NAME_MAX, "%s-%016" PRIx64 "-%016" PRIx64, kind, a, b);
}

bool ign_store_parse_name(const char *name, const char *kind, uint64_t *a, uint64_t *b)
{
    char again[IGN_STORE_NAME_MAX];
    size_t length = strlen(kind);
    if (strncmp(name, kind, length) != 0 || sscanf(name + length, "-%16" SCNx64 "-%16" SCNx64, a, b) != 2)
        return false;
    ign_store_file_name(again, kind, *a, *b);
    return strcmp(again, name) == 0;
}

int ign_store_error(int error)
{
    if (error <= 0)
        return error;
    errno = error;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        return IGN_E_NO_ROOM;
    if (error == ENOMEM)
        return IGN_E_NOMEM;
    return error == ESTALE ? IGN_E_MOVED : IGN_E_IO;
}

/* From where the last one was found, which mostly is the one that is wanted again: the others are not in the caches. */
static ign_log_file *find(ign_store *store, uint64_t generation, uint64_t number)
{
    for (unsigned i = 0; i < IGN_LOG_FILES; i++) {
        unsigned at = (store->found_at + i) % IGN_LOG_FILES;
        ign_log_file *f = &store->files[at];
        if (f->file >= 0 && f->generation == generation && f->number == number) {
            store->found_at = at;
            f->users++;
            f->used_at = ++store->uses;
            return f;
        }
    }
    return NULL;
}

int ign_store_use_file(ign_store *store, uint64_t generation, uint64_t number, const ign_ctl_head *head, ign_log_file **file)
{
    pthread_mutex_lock(&store->mutex);
    *file = find(store, generation, number);
    pthread_mutex_unlock(&store->mutex);
    if (*file != NULL)
        return 0;
    char name[IGN_STORE_NAME_MAX];
    int opened, unwanted = -1;
    ign_segment_name(name, generation, number);
    int rc = store->io->open(store->io, name, false, &opened);
    if (rc != 0)
        return rc;
    /* Behind the opening: the kernel tells this descriptor of what is written from now on. */
    uint64_t since = head == NULL ? UINT64_MAX : atomic_load_explicit(&head->written_to, memory_order_seq_cst);
    uint8_t sector[IGN_LOG_SECTOR];
    ign_segment_info info = {0};
    rc = store->io->read(store->io, opened, sector, sizeof sector, 0);
    if (rc == 0)
        rc = ign_segment_get_header(sector, &info);
    bool headless = rc != 0 && head == NULL && rc != IGN_E_VERSION; /* who only reads knows where: what stands there has checksums of its own */
    rc = headless ? 0 : rc;
    if (rc != 0) {
        store->io->close(store->io, opened);
        return rc;
    }
    pthread_mutex_lock(&store->mutex);
    *file = find(store, generation, number); /* another thread was quicker */
    if (*file != NULL)
        unwanted = opened;
    else {
        ign_log_file *oldest = NULL;
        for (unsigned i = 0; i < IGN_LOG_FILES; i++) {
            ign_log_file *f = &store->files[i];
            if (f->users == 0 && (oldest == NULL || f->file < 0 || (oldest->file >= 0 && f->used_at < oldest->used_at)))
                oldest = f;
        }
        if (oldest == NULL) {
            rc = EMFILE;
            unwanted = opened;
        } else {
            unwanted = oldest->file;
            *oldest = (ign_log_file){.file = opened, .users = 1, .generation = generation, .number = number, .info = info, .headless = headless,
                                     .since = since, .used_at = ++store->uses};
            *file = oldest;
        }
    }
    pthread_mutex_unlock(&store->mutex);
    if (unwanted >= 0)
        store->io->close(store->io, unwanted);
    return rc;
}

void ign_store_drop_file(ign_store *store, ign_log_file *file)
{
    pthread_mutex_lock(&store->mutex);
    file->users--;
    pthread_mutex_unlock(&store->mutex);
}

static bool is_known(ign_generation *g, const ign_log_file *f)
{
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        if (all[i].info.generation == f->generation && all[i].info.number == f->number)
            return true;
    return false;
}

void ign_store_drop_removed(ign_store *store, ign_generation *g)
{
    int gone[IGN_LOG_FILES];
    unsigned count = 0;
    if (ign_store_lock(store, g, false) != IGN_OK)
        return;
    pthread_mutex_lock(&store->mutex);
    for (unsigned i = 0; i < IGN_LOG_FILES; i++) {
        ign_log_file *f = &store->files[i];
        if (f->file >= 0 && f->users == 0 && f->generation <= g->number && !is_known(g, f)) {
            gone[count++] = f->file;
            *f = (ign_log_file){.file = -1};
        }
    }
    pthread_mutex_unlock(&store->mutex);
    ign_store_unlock(store, g);
    for (unsigned i = 0; i < count; i++)
        store->io->close(store->io, gone[i]);
}

void ign_store_close_files(ign_store *store)
{
    for (unsigned i = 0; i < IGN_LOG_FILES; i++)
        if (store->files[i].file >= 0)
            store->io->close(store->io, store->files[i].file);
}
