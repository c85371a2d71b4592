/* What the store asks of the machine: a table of functions, so that tests put a simulated disk below the same code.
 *
 * Files live in one directory and are named without a path. A function returns 0 or an errno. A file that is open stays
 * usable after its name is gone. `read` and `write` move all bytes or fail; a read beyond the end is EIO.
 *
 * Locks are of the open file (open-file-description locks): the kernel drops them with the last descriptor of whoever
 * took them, however it dies, and they mean the same in every pid namespace. A child of fork() shares the descriptor,
 * so it keeps its parent "alive" until it closes it: whoever forks closes the store's files in the child.
 */
#ifndef IGNIS_STORE_IO_H
#define IGNIS_STORE_IO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IGN_STORE_NAME_MAX 96u

typedef struct ign_store_io ign_store_io;
typedef void ign_store_name_fn(void *arg, const char *name);

/* What tells a file from all others of the machine. */
typedef struct ign_store_identity {
    uint64_t device, inode;
} ign_store_identity;

struct ign_store_io {
    int (*list)(ign_store_io *io, ign_store_name_fn *each, void *arg);
    int (*open)(ign_store_io *io, const char *name, bool create, int *file); /* create: EEXIST when it is there */
    void (*close)(ign_store_io *io, int file);
    int (*size)(ign_store_io *io, int file, uint64_t *bytes);
    int (*named)(ign_store_io *io, int file, bool *yes);             /* whether a name leads to it still */
    int (*read)(ign_store_io *io, int file, void *to, size_t bytes, uint64_t at);
    int (*write)(ign_store_io *io, int file, const void *from, size_t bytes, uint64_t at);
    int (*probe)(ign_store_io *io, const char *name);                /* the first bytes of a file, from the disk itself; NULL: cannot */
    int (*push)(ign_store_io *io, int file, uint64_t at, uint64_t bytes); /* what was written there, to the disk. It may be told what a flush is then not; NULL: nothing */
    void (*send)(ign_store_io *io, int file, uint64_t at, uint64_t bytes); /* ... on its way there: it waits for nothing and is told nothing; NULL: nothing */
    int (*flush)(ign_store_io *io, int file);                        /* fdatasync */
    int (*allocate)(ign_store_io *io, int file, uint64_t bytes);     /* the file has that size, and room on the disk */
    int (*punch)(ign_store_io *io, int file, uint64_t from);         /* the room behind is free again, the size stays; NULL: cannot */
    int (*room)(ign_store_io *io, uint64_t *bytes);                  /* that are free on the disk; NULL: nobody knows */
    int (*link_new)(ign_store_io *io, const char *from, const char *to); /* a second name; EEXIST when `to` is there */
    int (*remove)(ign_store_io *io, const char *name);
    int (*flush_names)(ign_store_io *io);                            /* fsync of the directory */
    int (*same_place)(ign_store_io *io);                             /* ESTALE: the path leads to another directory now */
    int (*identify)(ign_store_io *io, int file, ign_store_identity *identity);
    /* `same_place`, `named` and `size` in one: does the path of the directory with that name lead to that file, and how large is it? Where
     * it is NULL, or says no, they are asked one by one. */
    bool (*leads_to)(ign_store_io *io, const char *name, const ign_store_identity *identity, uint64_t *bytes);
    int (*map)(ign_store_io *io, int file, uint64_t reserve, void **memory); /* shared; the file may grow into it */
    void (*unmap)(ign_store_io *io, void *memory, uint64_t reserve);
    int (*lock)(ign_store_io *io, int file, uint64_t byte);          /* EAGAIN: another open file has it */
    int (*locked)(ign_store_io *io, int file, uint64_t byte, uint64_t count, bool *by_other);
    uint64_t (*now_ns)(ign_store_io *io);                            /* a clock that never jumps */
    uint64_t (*random)(ign_store_io *io);
    void (*wait)(ign_store_io *io, _Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
    void (*wake)(ign_store_io *io, _Atomic uint32_t *word);
    void (*step)(ign_store_io *io);                                  /* between two stores to shared memory; simulation only */
};

/* A place where a simulated process may be stopped or killed. Nothing in a build that ships. */
#ifdef IGN_STORE_SIMULATED
#define IGN_STEP(io)              \
    do {                          \
        if ((io)->step != NULL)   \
            (io)->step(io);       \
    } while (0)
#else
#define IGN_STEP(io) ((void)(io))
#endif

/* Writes much, in pieces that are sent to the disk one by one: who flushes another file meanwhile waits for one of them, not for all. */
int ign_store_write_out(ign_store_io *io, int file, const void *from, uint64_t bytes, uint64_t at);

/* ignis_store_map.c: `map` and `unmap` of the real machine. */
int ign_store_os_map(ign_store_io *io, int file, uint64_t reserve, void **memory);
void ign_store_os_unmap(ign_store_io *io, void *memory, uint64_t reserve);

/* The real machine over one directory, which must exist. */
int ign_store_io_open(const char *directory, ign_store_io **io); /* 0 or an errno */
void ign_store_io_close(ign_store_io *io);

#endif
