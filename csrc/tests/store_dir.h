/* A directory of its own for a test that uses the real disk, and its removal. */
#ifndef IGNIS_TEST_STORE_DIR_H
#define IGNIS_TEST_STORE_DIR_H

#include "check.h"

#include "../ignis_store_io.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char store_dir_path[64];

static inline void store_dir_remove_one(void *arg, const char *name)
{
    ign_store_io *io = arg;
    io->remove(io, name);
}

static inline ign_store_io *store_dir_open(void)
{
    strcpy(store_dir_path, "/tmp/ignis-store-XXXXXX");
    CHECK(mkdtemp(store_dir_path) != NULL);
    ign_store_io *io;
    CHECK_EQ(ign_store_io_open(store_dir_path, &io), 0);
    return io;
}

static inline void store_dir_close(ign_store_io *io)
{
    io->list(io, store_dir_remove_one, io);
    ign_store_io_close(io);
    CHECK_EQ(rmdir(store_dir_path), 0);
}

/* One byte of a file is another one. */
static inline void flip(ign_store_io *io, const char *name, uint64_t at)
{
    int file;
    uint8_t byte;
    CHECK_EQ(io->open(io, name, false, &file), 0);
    CHECK_EQ(io->read(io, file, &byte, 1, at), 0);
    byte ^= 0x20;
    CHECK_EQ(io->write(io, file, &byte, 1, at), 0);
    io->close(io, file);
}

#endif
