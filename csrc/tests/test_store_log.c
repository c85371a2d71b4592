/* The log's segments and entries: what was written is read, and nothing else is, wherever it was torn or changed. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "../ignis_bytes.h"
#include "../ignis_record.h"
#include "../ignis_store_log.h"

#include <errno.h>
#include <sys/stat.h>

enum { SIZE = 4096 };

static const ign_segment_info segment = {.generation = 3, .number = 7, .base = 8000, .size = SIZE, .salt = 0x5a17ull, .flushed = 8080};

/* Writes entries with payloads of 0, 13, 26 ... bytes into `image`; returns the position behind the last. */
static uint64_t fill_image(uint8_t *image, int entries)
{
    memset(image, 0, SIZE);
    ign_segment_put_header(image, &segment);
    uint64_t position = segment.base;
    for (int i = 0; i < entries; i++) {
        uint32_t bytes = (uint32_t)i * 13;
        uint8_t *at = image + ign_segment_offset(&segment, position);
        memset(at + IGN_ENTRY_HEADER, 'a' + i, bytes);
        ign_entry_seal(at, IGN_ENTRY_LOAD, bytes, segment.salt, position, position - 8);
        position += ign_entry_size(bytes);
    }
    return position;
}

static int count_entries(ign_store_io *io, int file, int *end)
{
    ign_log_reader reader;
    ign_entry entry;
    int count = 0;
    ign_log_reader_open(&reader, io, file, &segment, segment.base, UINT64_MAX);
    while ((*end = ign_log_next(&reader, &entry)) == IGN_OK) {
        CHECK_EQ(entry.type, IGN_ENTRY_LOAD);
        CHECK_EQ(entry.payload_bytes, count * 13);
        for (uint32_t i = 0; i < entry.payload_bytes; i++)
            CHECK_EQ(entry.payload[i], 'a' + count);
        count++;
    }
    ign_log_reader_close(&reader);
    return count;
}

static void names_and_headers(void)
{
    char name[IGN_STORE_NAME_MAX];
    uint64_t generation, number;
    ign_segment_name(name, 0x12345678abcdefull, 7);
    CHECK(ign_segment_parse_name(name, &generation, &number));
    CHECK(generation == 0x12345678abcdefull && number == 7);
    CHECK(!ign_segment_parse_name("log-1-2", &generation, &number));
    CHECK(!ign_segment_parse_name("control-1", &generation, &number));

    uint8_t sector[IGN_LOG_SECTOR];
    ign_segment_info got;
    ign_segment_put_header(sector, &segment);
    CHECK_EQ(ign_segment_get_header(sector, &got), IGN_OK);
    CHECK(memcmp(&got, &segment, sizeof got) == 0);
    for (unsigned i = 0; i < 68; i++) {
        sector[i] ^= 4;
        CHECK(ign_segment_get_header(sector, &got) < 0);
        sector[i] ^= 4;
    }
    sector[11] = 2;
    CHECK_EQ(ign_segment_get_header(sector, &got), IGN_E_CORRUPT);
    ign_put32(sector + 64, ign_crc32c(0, sector, 64));
    CHECK_EQ(ign_segment_get_header(sector, &got), IGN_E_VERSION);
}

static void torn_anywhere(void)
{
    ign_store_io *io = store_dir_open();
    static uint8_t whole[SIZE], torn[SIZE];
    uint64_t end = fill_image(whole, 12);
    size_t used = (size_t)ign_segment_offset(&segment, end);
    int file, how;
    CHECK_EQ(io->open(io, "torn", true, &file), 0);
    CHECK_EQ(io->write(io, file, whole, SIZE, 0), 0);
    CHECK_EQ(count_entries(io, file, &how), 12);
    CHECK_EQ(how, IGN_EMPTY);

    int last = 12;
    for (size_t cut = used; cut-- > IGN_LOG_SECTOR;) {
        memcpy(torn, whole, cut);
        memset(torn + cut, 0, SIZE - cut);
        CHECK_EQ(io->write(io, file, torn, SIZE, 0), 0);
        int found = count_entries(io, file, &how);
        CHECK(found <= last); /* zeros of the padding may be cut without a loss */
        last = found;
    }
    CHECK_EQ(last, 0);
    io->close(io, file);
    store_dir_close(io);
}

static void one_changed_byte(void)
{
    ign_store_io *io = store_dir_open();
    static uint8_t image[SIZE];
    uint64_t end = fill_image(image, 6);
    size_t used = (size_t)ign_segment_offset(&segment, end);
    int file, how;
    CHECK_EQ(io->open(io, "changed", true, &file), 0);
    for (size_t i = IGN_LOG_SECTOR; i < used; i++) {
        image[i] ^= 0x10;
        CHECK_EQ(io->write(io, file, image, SIZE, 0), 0);
        int found = count_entries(io, file, &how);
        /* Behind the last payload byte of an entry lie up to 7 bytes of padding, which mean nothing. */
        CHECK(found < 6 || how == IGN_EMPTY);
        if (found < 6)
            CHECK_EQ(how, IGN_E_CORRUPT);
        image[i] ^= 0x10;
    }
    io->close(io, file);
    store_dir_close(io);
}

/* The same bytes at another position, or under another salt, are no entries: a reused file, or a message that holds a log. */
static void bytes_of_elsewhere(void)
{
    static uint8_t image[SIZE];
    fill_image(image, 4);
    ign_entry entry;
    uint64_t needed;
    const uint8_t *first = image + IGN_LOG_SECTOR;
    CHECK_EQ(ign_entry_check(first, SIZE - IGN_LOG_SECTOR, segment.salt, segment.base, &entry, &needed), IGN_OK);
    CHECK_EQ(ign_entry_check(first, SIZE - IGN_LOG_SECTOR, segment.salt, segment.base + 8, &entry, &needed), IGN_E_CORRUPT);
    CHECK_EQ(ign_entry_check(first, SIZE - IGN_LOG_SECTOR, segment.salt + 1, segment.base, &entry, &needed), IGN_E_CORRUPT);
}

static void finds_its_feet_again(void)
{
    ign_store_io *io = store_dir_open();
    static uint8_t image[SIZE];
    uint64_t end = fill_image(image, 8);
    int file;
    uint64_t third = segment.base + ign_entry_size(0) + ign_entry_size(13);
    memset(image + ign_segment_offset(&segment, third), 0x77, 40);
    CHECK_EQ(io->open(io, "middle", true, &file), 0);
    CHECK_EQ(io->write(io, file, image, SIZE, 0), 0);
    ign_log_reader reader;
    ign_entry entry;
    ign_log_reader_open(&reader, io, file, &segment, segment.base, UINT64_MAX);
    CHECK_EQ(ign_log_next(&reader, &entry), IGN_OK);
    CHECK_EQ(ign_log_next(&reader, &entry), IGN_OK);
    CHECK_EQ(ign_log_next(&reader, &entry), IGN_E_CORRUPT);
    CHECK_EQ(ign_log_resync(&reader), IGN_OK);
    int found = 2;
    while (ign_log_next(&reader, &entry) == IGN_OK)
        found++;
    CHECK_EQ(found, 2 + 5);
    CHECK(reader.position == end);
    CHECK_EQ(ign_log_resync(&reader), IGN_EMPTY);
    ign_log_reader_close(&reader);
    io->close(io, file);
    store_dir_close(io);
}

/* A file that is shorter than its header says is read as far as it goes, and then as damaged, not as an end. */
static void short_file(void)
{
    ign_store_io *io = store_dir_open();
    static uint8_t image[SIZE];
    fill_image(image, 3);
    int file, how;
    CHECK_EQ(io->open(io, "short", true, &file), 0);
    CHECK_EQ(io->write(io, file, image, IGN_LOG_SECTOR + 30, 0), 0);
    CHECK_EQ(count_entries(io, file, &how), 1);
    CHECK_EQ(how, IGN_E_CORRUPT);
    io->close(io, file);
    store_dir_close(io);
}

static void another_directory(void)
{
    ign_store_io *io = store_dir_open();
    CHECK_EQ(io->same_place(io), 0);
    char moved[80];
    snprintf(moved, sizeof moved, "%s.moved", store_dir_path);
    CHECK_EQ(rename(store_dir_path, moved), 0);
    CHECK(io->same_place(io) != 0);
    CHECK_EQ(rename(moved, store_dir_path), 0);
    CHECK_EQ(io->same_place(io), 0);
    store_dir_close(io);
}

/* One look says what three do: cut, removed, another file of that name, and another directory, also one with the same files in it. */
static void leads_to(void)
{
    ign_store_io *io = store_dir_open();
    ign_store_identity identity;
    uint64_t bytes = 0;
    int file, other;
    char moved[80], there[96], here[96];
    CHECK_EQ(io->open(io, "file", true, &file), 0);
    CHECK_EQ(io->write(io, file, "12345", 5, 0), 0);
    CHECK_EQ(io->identify(io, file, &identity), 0);
    CHECK(io->leads_to(io, "file", &identity, &bytes));
    CHECK_EQ(bytes, 5);
    CHECK(!io->leads_to(io, "another", &identity, &bytes));
    snprintf(moved, sizeof moved, "%s.moved", store_dir_path);
    CHECK_EQ(rename(store_dir_path, moved), 0);
    CHECK(!io->leads_to(io, "file", &identity, &bytes));
    CHECK_EQ(mkdir(store_dir_path, 0700), 0);
    snprintf(there, sizeof there, "%s/file", moved);
    snprintf(here, sizeof here, "%s/file", store_dir_path);
    CHECK_EQ(link(there, here), 0);
    CHECK(!io->leads_to(io, "file", &identity, &bytes));
    CHECK_EQ(unlink(here), 0);
    CHECK_EQ(rmdir(store_dir_path), 0);
    CHECK_EQ(rename(moved, store_dir_path), 0);
    CHECK(io->leads_to(io, "file", &identity, &bytes));
    CHECK_EQ(io->remove(io, "file"), 0);
    CHECK(!io->leads_to(io, "file", &identity, &bytes));
    CHECK_EQ(io->open(io, "file", true, &other), 0);
    CHECK(!io->leads_to(io, "file", &identity, &bytes));
    io->close(io, file);
    io->close(io, other);
    store_dir_close(io);
}

static unsigned pieces;
static uint64_t pushed;

static int counting_push(ign_store_io *io, int file, uint64_t at, uint64_t bytes)
{
    (void)io, (void)file;
    CHECK_EQ(at, 7 + pushed);
    pushed += bytes;
    pieces++;
    return 0;
}

static int failing_push(ign_store_io *io, int file, uint64_t at, uint64_t bytes)
{
    (void)io, (void)file, (void)bytes;
    return at == 7 ? 0 : EIO;
}

/* What is long goes out in pieces, whole, and where it belongs. */
static void in_pieces(void)
{
    ign_store_io *io = store_dir_open();
    enum { LONG = (1 << 20) + 5 };
    uint8_t *from = malloc(LONG), *back = malloc(LONG);
    int file;
    for (unsigned i = 0; i < LONG; i++)
        from[i] = (uint8_t)(i * 31 + i / 251);
    CHECK_EQ(io->open(io, "long", true, &file), 0);
    io->push = counting_push;
    CHECK_EQ(ign_store_write_out(io, file, from, LONG, 7), 0);
    CHECK_EQ(pushed, LONG);
    CHECK_EQ(pieces, 5);
    CHECK_EQ(io->read(io, file, back, LONG, 7), 0);
    CHECK(memcmp(from, back, LONG) == 0);
    /* What the disk refused is told here: the flush behind it is not told any more. */
    io->push = failing_push;
    CHECK_EQ(ign_store_write_out(io, file, from, LONG, 7), EIO);
    io->close(io, file);
    free(from);
    free(back);
    store_dir_close(io);
}

/* -- a search reads what it passes a few times at most ---------------------------------------------------------------------- */

static int (*real_read)(ign_store_io *io, int file, void *to, size_t bytes, uint64_t at);
static uint64_t bytes_read;

static int counting_read(ign_store_io *io, int file, void *to, size_t bytes, uint64_t at)
{
    bytes_read += bytes;
    return real_read(io, file, to, bytes, at);
}

/* At each page a header that holds, of an entry that reaches to the end and does not; nothing; and noise. */
static void search_is_bounded(void)
{
    enum { BYTES = 1 << 20, APART = 4096 };
    ign_store_io *io = store_dir_open();
    static uint8_t image[BYTES];
    const ign_segment_info large = {.generation = 3, .number = 7, .base = 8000, .size = BYTES, .salt = 0x5a17ull, .flushed = 8000};
    real_read = io->read;
    io->read = counting_read;
    for (int what = 0; what < 3; what++) {
        memset(image, 0, sizeof image);
        ign_segment_put_header(image, &large);
        uint64_t last = ign_segment_end(&large) - 64, noise = 1;
        for (uint64_t at = 8000; what == 0 && at + 200 < last; at += APART) {
            uint8_t *to = image + ign_segment_offset(&large, at);
            uint32_t bytes = (uint32_t)(last - at - IGN_ENTRY_HEADER - (last - at) / APART * 8); /* each reaches further */
            ign_entry_seal(to, IGN_ENTRY_LOAD, bytes, large.salt, at, 0);
            to[4] ^= 1; /* of all of it */
        }
        for (uint64_t i = IGN_LOG_SECTOR; what == 2 && i < BYTES - 64; i++)
            image[i] = (uint8_t)((noise = noise * 6364136223846793005ull + 1442695040888963407ull) >> 56);
        uint8_t *whole = image + ign_segment_offset(&large, last);
        memset(whole, 0, 64);
        ign_entry_seal(whole, IGN_ENTRY_LOAD, 16, large.salt, last, 0);
        char name[] = "search-0";
        int file;
        name[7] = (char)('0' + what);
        CHECK_EQ(io->open(io, name, true, &file), 0);
        CHECK_EQ(io->write(io, file, image, BYTES, 0), 0);
        ign_log_reader reader;
        ign_entry entry;
        ign_log_reader_open(&reader, io, file, &large, large.base, UINT64_MAX);
        bytes_read = 0;
        CHECK(ign_log_next(&reader, &entry) != IGN_OK);
        CHECK_EQ(ign_log_resync(&reader), IGN_OK);
        CHECK_EQ(ign_log_next(&reader, &entry), IGN_OK);
        CHECK(entry.position == last);
        CHECK(bytes_read <= 4 * BYTES);
        ign_log_reader_close(&reader);
        io->close(io, file);
    }
    io->read = real_read;
    store_dir_close(io);
}

MAIN("store_log", {
    RUN(search_is_bounded);
    RUN(names_and_headers);
    RUN(torn_anywhere);
    RUN(one_changed_byte);
    RUN(bytes_of_elsewhere);
    RUN(finds_its_feet_again);
    RUN(short_file);
    RUN(another_directory);
    RUN(leads_to);
    RUN(in_pieces);
})
