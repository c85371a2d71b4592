#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "ignis_store_io.h"

#include "ignis_wait.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#ifdef __linux__
#include <sys/random.h>
#endif
#include <unistd.h>

#if defined(__APPLE__) && !defined(F_OFD_SETLK) /* the kernel has them, its headers do not name them */
#define F_OFD_SETLK 90
#define F_OFD_GETLK 92
#endif

enum { IGN_STORE_PATH_MAX = 1024 };

typedef struct os_io {
    ign_store_io io; /* first, so that the functions can cast its pointer to this struct */
    int directory;
    dev_t device;
    ino_t inode;
    char path[];
} os_io;

static int os_list(ign_store_io *io, ign_store_name_fn *each, void *arg)
{
    os_io *p = (os_io *)io;
    int fd = openat(p->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int kept = errno;
        close(fd);
        return kept;
    }
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (entry == NULL)
            break;
        if (entry->d_name[0] != '.' && strlen(entry->d_name) < IGN_STORE_NAME_MAX)
            each(arg, entry->d_name);
    }
    int kept = errno;
    closedir(dir);
    return kept;
}

static int os_open(ign_store_io *io, const char *name, bool create, int *file)
{
    os_io *p = (os_io *)io;
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0);
    *file = openat(p->directory, name, flags, 0600);
    if (*file < 0)
        return errno;
    /* With a umask that takes the owner's bits the file could not be opened again. */
    if (create && fchmod(*file, 0600) != 0) {
        int kept = errno;
        close(*file);
        (void)unlinkat(p->directory, name, 0);
        *file = -1;
        return kept;
    }
    return 0;
}

static void os_close(ign_store_io *io, int file)
{
    (void)io;
    close(file);
}

static int os_size(ign_store_io *io, int file, uint64_t *bytes)
{
    (void)io;
    struct stat st;
    if (fstat(file, &st) != 0)
        return errno;
    *bytes = (uint64_t)st.st_size;
    return 0;
}

static int os_read(ign_store_io *io, int file, void *to, size_t bytes, uint64_t at)
{
    (void)io;
    for (uint8_t *p = to; bytes > 0;) {
        ssize_t got = pread(file, p, bytes, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : EIO;
        p += got;
        bytes -= (size_t)got;
        at += (uint64_t)got;
    }
    return 0;
}

/* Reads with O_DIRECT, so that the page cache does not answer for a disk that is gone. A file system without it is asked to drop the page. */
static int os_probe(ign_store_io *io, const char *name)
{
    enum { BLOCK = 4096 };
    os_io *p = (os_io *)io;
    int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW, fd = -1, rc = EINVAL;
    void *block = NULL;
    if (posix_memalign(&block, BLOCK, BLOCK) != 0)
        return ENOMEM;
#ifdef O_DIRECT
    fd = openat(p->directory, name, flags | O_DIRECT);
    if (fd >= 0)
        rc = pread(fd, block, BLOCK, 0) > 0 ? 0 : errno;
    else
        rc = errno;
#endif
    if (rc == EINVAL) {
        if (fd >= 0)
            close(fd);
        fd = openat(p->directory, name, flags);
#ifdef __linux__
        if (fd >= 0)
            (void)posix_fadvise(fd, 0, BLOCK, POSIX_FADV_DONTNEED);
#endif
        rc = fd >= 0 && pread(fd, block, 1, 0) == 1 ? 0 : errno;
    }
    if (fd >= 0)
        close(fd);
    free(block);
    return rc;
}

static int os_named(ign_store_io *io, int file, bool *yes)
{
    (void)io;
    struct stat st;
    if (fstat(file, &st) != 0)
        return errno;
    *yes = st.st_nlink > 0;
    return 0;
}

static int os_write(ign_store_io *io, int file, const void *from, size_t bytes, uint64_t at)
{
    (void)io;
    for (const uint8_t *p = from; bytes > 0;) {
        ssize_t put = pwrite(file, p, bytes, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? errno : ENOSPC;
        p += put;
        bytes -= (size_t)put;
        at += (uint64_t)put;
    }
    return 0;
}

/* Who waits for pages is told that one could not be written, and the next flush of this descriptor is not. */
static int os_push(ign_store_io *io, int file, uint64_t at, uint64_t bytes)
{
    (void)io;
#ifdef __linux__
    unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (sync_file_range(file, (off_t)at, (off_t)bytes, all) == 0 || errno == ESPIPE || errno == EINVAL || errno == ENOSYS || errno == EPERM)
        return 0; /* or there is no such call for this file, on this kernel, in this container: a flush will do */
    return errno;
#else
    (void)file, (void)at, (void)bytes;
    return 0;
#endif
}

static void os_send(ign_store_io *io, int file, uint64_t at, uint64_t bytes)
{
    (void)io;
#ifdef __linux__
    (void)sync_file_range(file, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
#else
    (void)file, (void)at, (void)bytes;
#endif
}

static int os_flush(ign_store_io *io, int file)
{
    (void)io;
#ifdef __APPLE__
    return fcntl(file, F_FULLFSYNC) == 0 ? 0 : errno;
#else
    if (fdatasync(file) != 0)
        return errno;
    /* After ext4 has aborted its journal, for a failed write or a device that is gone, a flush returns 0 though nothing more gets to the
     * disk. So a flush counts only while the file system still takes a write. This one is of no bytes. */
    return pwrite(file, "", 0, 0) == 0 ? 0 : errno;
#endif
}

static int os_allocate(ign_store_io *io, int file, uint64_t bytes)
{
    (void)io;
#ifdef __linux__
    int rc;
    do
        rc = fallocate(file, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
    while (rc == EINTR);
    if (rc != EOPNOTSUPP)
        return rc;
#endif
    return ftruncate(file, (off_t)bytes) == 0 ? 0 : errno;
}

static int os_punch(ign_store_io *io, int file, uint64_t from)
{
    (void)io;
#ifdef __linux__
    struct stat st;
    if (fstat(file, &st) != 0)
        return errno;
    if ((uint64_t)st.st_size <= from)
        return 0;
    return fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, st.st_size - (off_t)from) == 0 ? 0 : errno;
#else
    (void)file, (void)from;
    return ENOTSUP;
#endif
}

static int os_room(ign_store_io *io, uint64_t *bytes)
{
    struct statvfs disk;
    if (fstatvfs(((os_io *)io)->directory, &disk) != 0)
        return errno;
    *bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    return 0;
}

static int os_link_new(ign_store_io *io, const char *from, const char *to)
{
    os_io *p = (os_io *)io;
    return linkat(p->directory, from, p->directory, to, 0) == 0 ? 0 : errno;
}

static int os_remove(ign_store_io *io, const char *name)
{
    os_io *p = (os_io *)io;
    return unlinkat(p->directory, name, 0) == 0 ? 0 : errno;
}

static int os_flush_names(ign_store_io *io)
{
    os_io *p = (os_io *)io;
    return fsync(p->directory) == 0 ? 0 : errno;
}

static int os_same_place(ign_store_io *io)
{
    os_io *p = (os_io *)io;
    struct stat st;
    if (stat(p->path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? ESTALE : errno;
    return st.st_dev == p->device && st.st_ino == p->inode ? 0 : ESTALE;
}

static int os_identify(ign_store_io *io, int file, ign_store_identity *identity)
{
    (void)io;
    struct stat st;
    if (fstat(file, &st) != 0)
        return errno;
    *identity = (ign_store_identity){.device = (uint64_t)st.st_dev, .inode = (uint64_t)st.st_ino};
    return 0;
}

static bool os_leads_to(ign_store_io *io, const char *name, const ign_store_identity *identity, uint64_t *bytes)
{
    os_io *p = (os_io *)io;
    struct stat st;
    char path[IGN_STORE_PATH_MAX];
    size_t length = strlen(p->path), name_bytes = strlen(name) + 1;
    if (length + 1 + name_bytes > sizeof path)
        return false;
    memcpy(path, p->path, length);
    path[length] = '/';
    memcpy(path + length + 1, name, name_bytes);
    /* A file with a second name may be found in a directory that was put in the place of this one. */
    if (stat(path, &st) != 0 || st.st_nlink != 1 || (uint64_t)st.st_dev != identity->device || (uint64_t)st.st_ino != identity->inode)
        return false;
    *bytes = (uint64_t)st.st_size;
    return true;
}

static int os_lock(ign_store_io *io, int file, uint64_t byte)
{
    (void)io;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    if (fcntl(file, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EACCES ? EAGAIN : errno;
}

static int os_locked(ign_store_io *io, int file, uint64_t byte, uint64_t count, bool *by_other)
{
    (void)io;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = (off_t)count};
    if (fcntl(file, F_OFD_GETLK, &lock) != 0)
        return errno;
    *by_other = lock.l_type != F_UNLCK;
    return 0;
}

static uint64_t os_now_ns(ign_store_io *io)
{
    (void)io;
    return ign_now_ns();
}

static uint64_t os_random(ign_store_io *io)
{
    uint64_t drawn;
#ifdef __linux__
    if (getrandom(&drawn, sizeof drawn, 0) == (ssize_t)sizeof drawn)
        return drawn;
#else
    arc4random_buf(&drawn, sizeof drawn);
    return drawn;
#endif
    drawn = os_now_ns(io) ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)&drawn;
    return drawn;
}

static void os_wait(ign_store_io *io, _Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    (void)io;
    ign_futex_wait(word, seen, timeout_ns);
}

static void os_wake(ign_store_io *io, _Atomic uint32_t *word)
{
    (void)io;
    ign_futex_wake_all(word);
}

int ign_store_write_out(ign_store_io *io, int file, const void *from, uint64_t bytes, uint64_t at)
{
    enum { PIECE = 1 << 18 };
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < bytes; done += PIECE) {
        uint64_t part = bytes - done < PIECE ? bytes - done : PIECE;
        rc = io->write(io, file, (const uint8_t *)from + done, (size_t)part, at + done);
        if (rc == 0 && io->push != NULL)
            rc = io->push(io, file, at + done, part);
    }
    return rc;
}

int ign_store_io_open(const char *directory, ign_store_io **io)
{
    size_t length = strlen(directory) + 1;
    os_io *p = calloc(1, sizeof *p + length);
    if (p == NULL)
        return ENOMEM;
    memcpy(p->path, directory, length);
    struct stat st;
    p->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->directory < 0 || fstat(p->directory, &st) != 0) {
        int kept = errno;
        if (p->directory >= 0)
            close(p->directory);
        free(p);
        return kept;
    }
    p->device = st.st_dev;
    p->inode = st.st_ino;
    p->io = (ign_store_io){
        .list = os_list, .open = os_open, .close = os_close, .size = os_size, .named = os_named, .read = os_read, .probe = os_probe,
        .write = os_write, .push = os_push, .send = os_send, .flush = os_flush, .allocate = os_allocate, .punch = os_punch, .room = os_room, .link_new = os_link_new,
        .remove = os_remove, .flush_names = os_flush_names, .same_place = os_same_place, .identify = os_identify,
        .leads_to = os_leads_to, .map = ign_store_os_map,
        .unmap = ign_store_os_unmap, .lock = os_lock, .locked = os_locked, .now_ns = os_now_ns,
        .random = os_random, .wait = os_wait, .wake = os_wake,
    };
    *io = &p->io;
    return 0;
}

void ign_store_io_close(ign_store_io *io)
{
    if (io == NULL)
        return;
    close(((os_io *)io)->directory);
    free(io);
}
