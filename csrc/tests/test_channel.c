/* Channels: two threads, two processes, dead peers, foreign and cut files, and a peer that does not keep to the rules. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ignis_channel.h"

#define SECOND 1000000000ull

static char path[128];

static const char *fresh_path(void)
{
    static int serial;
    snprintf(path, sizeof path, "/tmp/ignis-test-%ld-%d.region", (long)getpid(), serial++);
    unlink(path);
    return path;
}

static ign_channel *blank(void)
{
    ign_channel *c = aligned_alloc(IGN_LINE_BYTES, sizeof *c);
    CHECK(c != NULL);
    memset(c, 0, sizeof *c);
    return c;
}

static ign_region_config small(void)
{
    return (ign_region_config){.ring_capacity = 16, .max_message_bytes = 1000, .class_count = 2,
                               .slot_bytes = {128, 1024}, .slot_counts = {16, 8}};
}

static int send_bytes(ign_channel *c, const void *data, size_t n, uint16_t kind)
{
    ign_slab_ref ref;
    uint8_t *at;
    int rc = ign_channel_reserve(c, n, &ref, &at);
    if (rc != IGN_OK)
        return rc;
    memcpy(at, data, n);
    ign_channel_stage(c, &ref, kind);
    ign_channel_publish(c);
    return IGN_OK;
}

static int send_number(ign_channel *c, uint64_t n) { return send_bytes(c, &n, sizeof n, (uint16_t)n); }

/* The next message as a number, or a negative code, or -1000 - code for a result. */
static int64_t receive_number(ign_channel *c)
{
    const ign_message *m;
    uint32_t got;
    int rc = ign_channel_peek(c, &m, &got);
    if (rc != IGN_OK)
        return -1000 - rc;
    uint64_t n = 0;
    int code = m->code;
    uint32_t slot = m->slot, generation = m->generation;
    if (code == IGN_OK) {
        CHECK_EQ(m->length, sizeof n);
        memcpy(&n, m->bytes, sizeof n);
    }
    ign_channel_advance(c, 1);
    if (code != IGN_OK)
        return code;
    CHECK_EQ(ign_channel_give_back(c, slot, generation), IGN_OK);
    return (int64_t)n;
}

/* -- on the heap -------------------------------------------------------------------------------------------------- */

static void limits(void)
{
    ign_channel *c = blank();
    ign_region_config config = small();
    CHECK_EQ(ign_channel_heap(c, &config), IGN_OK);
    uint8_t big[1001] = {0};
    CHECK_EQ(send_bytes(c, big, 1001, 0), IGN_E_TOO_LARGE);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(send_bytes(c, big, 1000, 7), IGN_OK);
    CHECK_EQ(send_bytes(c, big, 1000, 7), IGN_FULL); /* the class is out of slots */
    for (uint64_t i = 0; i < 8; i++)
        CHECK_EQ(send_number(c, i), IGN_OK);
    CHECK_EQ(send_number(c, 9), IGN_FULL); /* the ring is full */
    CHECK_EQ(ign_channel_depth(c), 16);
    const ign_message *m;
    uint32_t got;
    CHECK_EQ(ign_channel_peek(c, &m, &got), IGN_OK);
    CHECK(got == 16 && m[0].length == 1000 && m[0].kind == 7 && m[8].length == 8);
    for (uint32_t i = 0; i < 16; i++)
        CHECK_EQ(ign_channel_give_back(c, m[i].slot, m[i].generation), IGN_OK);
    ign_channel_advance(c, 16);
    ign_channel_flush(c);
    CHECK_EQ(ign_channel_collect(c), IGN_OK);
    CHECK_EQ(ign_slab_active(&c->slab), 0);
    CHECK_EQ(c->bad_returns, 0);
    CHECK_EQ(send_bytes(c, big, 0, 0), IGN_OK); /* an empty message is a message */
    ign_channel_close(c);
    ign_channel_close(c);
    config.ring_capacity = 15;
    CHECK_EQ(ign_channel_heap(c, &config), IGN_E_INVALID);
    config = small();
    config.max_message_bytes = 1025;
    CHECK_EQ(ign_channel_heap(c, &config), IGN_E_INVALID);
    CHECK_EQ(ign_region_config_default(&config, 1024, 1 << 20), IGN_OK);
    CHECK(config.class_count == 7 && config.slot_bytes[6] == 1 << 20 && config.slot_counts[6] == 4);
    free(c);
}

typedef struct job {
    ign_channel *c;
    uint64_t count;
    size_t size;
    uint32_t bulk;
} job;

/* Message n is `size` bytes of n: what is torn or early shows in the content. */
static void *produce(void *arg)
{
    job *j = arg;
    for (uint64_t n = 0; n < j->count;) {
        uint32_t staged = 0;
        int rc = IGN_OK;
        while (staged < j->bulk && n < j->count) {
            ign_slab_ref ref;
            uint8_t *at;
            rc = ign_channel_reserve(j->c, j->size, &ref, &at);
            if (rc != IGN_OK)
                break;
            for (size_t w = 0; w < j->size / 8; w++)
                memcpy(at + w * 8, &n, 8);
            ign_channel_stage(j->c, &ref, (uint16_t)n);
            staged++;
            n++;
        }
        ign_channel_publish(j->c);
        if (rc == IGN_OK)
            continue;
        CHECK_EQ(rc, IGN_FULL);
        rc = ign_channel_wait_space(j->c, 10 * SECOND, n % 2, ign_channel_depth(j->c) < j->c->region.ring_capacity);
        CHECK(rc == IGN_OK || rc == IGN_TIMEOUT);
    }
    return NULL;
}

static void consume(job *j)
{
    uint64_t n = 0;
    while (n < j->count) {
        const ign_message *m;
        uint32_t got;
        int rc = ign_channel_peek(j->c, &m, &got);
        if (rc == IGN_EMPTY) {
            ign_channel_flush(j->c);
            rc = ign_channel_wait_items(j->c, 10 * SECOND, n % 2);
            CHECK(rc == IGN_OK || rc == IGN_TIMEOUT);
            continue;
        }
        CHECK_EQ(rc, IGN_OK);
        for (uint32_t i = 0; i < got; i++, n++) {
            CHECK(m[i].length == j->size && m[i].kind == (uint16_t)n);
            for (size_t w = 0; w < j->size / 8; w++)
                CHECK(memcmp(m[i].bytes + w * 8, &n, 8) == 0);
            CHECK_EQ(ign_channel_give_back(j->c, m[i].slot, m[i].generation), IGN_OK);
        }
        ign_channel_advance(j->c, got);
    }
    ign_channel_flush(j->c);
}

static void run_threads(const ign_region_config *config, uint64_t count, size_t size, uint32_t bulk)
{
    job j = {.c = blank(), .count = count, .size = size, .bulk = bulk};
    CHECK_EQ(ign_channel_heap(j.c, config), IGN_OK);
    pthread_t t;
    CHECK_EQ(pthread_create(&t, NULL, produce, &j), 0);
    consume(&j);
    pthread_join(t, NULL);
    j.c->back_in.check_thread = false; /* the producer's thread is gone; we look at its side ourselves */
    CHECK_EQ(ign_channel_collect(j.c), IGN_OK);
    CHECK_EQ(ign_slab_active(&j.c->slab), 0);
    CHECK_EQ(j.c->bad_returns, 0);
    ign_channel_close(j.c);
    free(j.c);
}

#ifdef IGN_TEST_TSAN
#define ROUNDS 30000u
#else
#define ROUNDS 300000u
#endif

static void stress_small_ring(void)
{
    ign_region_config config = small();
    config.ring_capacity = 2;
    run_threads(&config, ROUNDS / 10, 128, 1);
}

static void stress_few_slots(void)
{
    ign_region_config config = small();
    config.slot_counts[0] = 1;
    run_threads(&config, ROUNDS / 10, 128, 1);
}

static void stress_roomy(void)
{
    ign_region_config config;
    CHECK_EQ(ign_region_config_default(&config, 4096, 16384), IGN_OK);
    run_threads(&config, ROUNDS, 200, 1);
    run_threads(&config, ROUNDS, 128, 64);
}

/* -- files and processes ------------------------------------------------------------------------------------------ */

static void roles_and_closing(void)
{
    const char *file = fresh_path();
    ign_channel *p = blank(), *c = blank(), *other = blank();
    ign_region_config config = small();
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_E_IO);
    CHECK_EQ(errno, ENOENT);
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    struct stat st;
    CHECK_EQ(stat(file, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK_EQ(ign_channel_create(other, file, &config, IGN_PRODUCER), IGN_E_IO);
    CHECK_EQ(errno, EEXIST);
    CHECK_EQ(ign_channel_open(other, file, IGN_PRODUCER), IGN_E_BUSY);
    CHECK_EQ(ign_region_owner_state(&p->region, IGN_CONSUMER), IGN_EMPTY);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    CHECK_EQ(ign_region_owner_state(&p->region, IGN_CONSUMER), IGN_OK);
    CHECK_EQ(ign_channel_wait_items(c, 0, true), IGN_TIMEOUT);
    ign_region_set_note(&p->region, 3, 77);
    CHECK_EQ(ign_region_get_note(&c->region, 3), 77);
    for (uint64_t i = 0; i < 5; i++)
        CHECK_EQ(send_number(p, i), IGN_OK);
    ign_channel_close(p);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(receive_number(c), i); /* what was sent before the close comes first */
    CHECK_EQ(ign_channel_wait_items(c, SECOND, true), IGN_E_CLOSED);
    CHECK_EQ(ign_channel_open(p, file, IGN_PRODUCER), IGN_OK); /* the role is free again */
    CHECK_EQ(send_number(p, 5), IGN_OK);
    CHECK_EQ(receive_number(c), 5);
    ign_channel_close(c);
    for (uint64_t i = 0; i < 16; i++)
        CHECK_EQ(send_number(p, i), IGN_OK);
    CHECK_EQ(ign_channel_wait_space(p, SECOND, true, false), IGN_E_CLOSED);
    ign_channel_interrupt(p);
    ign_channel_close(p);
    unlink(file);
    free(p), free(c), free(other);
}

static void killed_producer_leaves_what_it_sent(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    ign_channel *c = blank();
    CHECK_EQ(ign_channel_create(c, file, &config, IGN_CONSUMER), IGN_OK);
    pid_t child = fork();
    if (child == 0) {
        ign_channel *p = blank();
        if (ign_channel_open(p, file, IGN_PRODUCER) != IGN_OK)
            _exit(2);
        for (uint64_t i = 0; i < 10; i++)
            send_number(p, i);
        ign_slab_ref ref;
        uint8_t *at;
        ign_channel_reserve(p, 100, &ref, &at); /* half made when it dies */
        ign_channel_stage(p, &ref, 1);
        kill(getpid(), SIGKILL);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    for (int i = 0; i < 10; i++)
        CHECK_EQ(receive_number(c), i);
    uint64_t began = ign_now_ns();
    CHECK_EQ(ign_channel_wait_items(c, 10 * SECOND, true), IGN_E_PEER_DEAD);
    CHECK(ign_now_ns() - began < SECOND);
    /* The next producer takes back the slot that was never published. */
    ign_channel *p = blank();
    CHECK_EQ(ign_channel_open(p, file, IGN_PRODUCER), IGN_OK);
    ign_channel_flush(c);
    CHECK_EQ(ign_channel_collect(p), IGN_OK);
    CHECK_EQ(ign_slab_active(&p->slab), 0);
    CHECK_EQ(send_number(p, 42), IGN_OK);
    CHECK_EQ(receive_number(c), 42);
    ign_channel_close(p);
    ign_channel_close(c);
    unlink(file);
    free(p), free(c);
}

static void killed_consumer_loses_its_slots_to_the_next(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    ign_channel *p = blank(), *c = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    for (uint64_t i = 0; i < 16; i++)
        CHECK_EQ(send_number(p, i), IGN_OK);
    pid_t child = fork();
    if (child == 0) {
        ign_channel *mine = blank();
        const ign_message *m;
        uint32_t got;
        if (ign_channel_open(mine, file, IGN_CONSUMER) != IGN_OK || ign_channel_peek(mine, &m, &got) != IGN_OK)
            _exit(2);
        ign_channel_give_back(mine, m[0].slot, m[0].generation); /* one goes home, */
        ign_channel_advance(mine, 10);                           /* nine are taken and never given back */
        ign_channel_flush(mine);
        kill(getpid(), SIGKILL);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    for (uint64_t i = 16; i < 17; i++)
        CHECK_EQ(send_number(p, i), IGN_OK);
    CHECK_EQ(send_number(p, 99), IGN_FULL);
    CHECK_EQ(ign_channel_wait_space(p, 5 * SECOND, true, true), IGN_E_PEER_DEAD);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    CHECK_EQ(ign_channel_wait_space(p, SECOND, true, true), IGN_OK); /* orphans */
    for (uint64_t i = 17; i < 26; i++)
        CHECK_EQ(send_number(p, i), IGN_OK);
    CHECK_EQ(send_number(p, 99), IGN_FULL);
    for (int i = 10; i < 26; i++)
        CHECK_EQ(receive_number(c), i);
    ign_channel_flush(c);
    CHECK_EQ(ign_channel_collect(p), IGN_OK);
    CHECK_EQ(ign_slab_active(&p->slab), 0);
    CHECK_EQ(p->bad_returns, 0);
    ign_channel_close(p);
    ign_channel_close(c);
    unlink(file);
    free(p), free(c);
}

/* Dies when it has looked at everything, taken the first `taken` and given back the slots of the first `home`. */
static void survey_and_die(const char *file, uint32_t taken, uint32_t home)
{
    pid_t child = fork();
    if (child == 0) {
        ign_channel *c = blank();
        ign_ring_entry entries[16];
        ign_message messages[16];
        uint32_t got;
        if (ign_channel_open(c, file, IGN_CONSUMER) != IGN_OK ||
            ign_channel_survey(c, 0, entries, messages, 16, &got) != IGN_OK || got != 8)
            _exit(2);
        ign_channel_take(c, taken);
        for (uint32_t i = 0; i < home; i++)
            (void)ign_channel_give_back(c, messages[i].slot, messages[i].generation);
        if (home != 0)
            ign_channel_flush(c);
        raise(SIGKILL);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
}

static void what_was_surveyed_and_not_taken_is_the_next_consumers(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    config.bytering_bytes = 2048;
    ign_channel *p = blank(), *c = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    uint8_t big[1000] = {0}; /* half of them lie in the byte ring, half in slots */
    for (uint64_t i = 0; i < 8; i++) {
        memcpy(big, &i, sizeof i);
        CHECK_EQ(send_bytes(p, big, i % 2 ? 1000 : 8, (uint16_t)i), IGN_OK);
    }
    survey_and_die(file, 0, 0);
    survey_and_die(file, 0, 0);
    CHECK_EQ(ign_channel_read_pos(p), 0);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    ign_ring_entry entries[16];
    ign_message messages[16];
    uint32_t got;
    CHECK_EQ(ign_channel_survey(c, 0, entries, messages, 16, &got), IGN_OK);
    CHECK_EQ(got, 8);
    for (uint64_t i = 0; i < 8; i++) {
        uint64_t n;
        CHECK(messages[i].code == IGN_OK && messages[i].kind == i && messages[i].length == (i % 2 ? 1000u : 8u));
        memcpy(&n, messages[i].bytes, sizeof n);
        CHECK_EQ(n, i);
    }
    ign_channel_take(c, 3);
    CHECK_EQ(ign_channel_read_pos(p), 3);
    CHECK_EQ(ign_channel_survey(c, 0, entries, messages, 2, &got), IGN_OK);
    CHECK(got == 2 && messages[0].kind == 3);
    ign_channel_take(c, 5);
    CHECK_EQ(ign_channel_survey(c, 0, entries, messages, 16, &got), IGN_EMPTY);
    CHECK_EQ(got, 0);
    ign_channel_close(c); /* gave nothing back: the next consumer's start is the sign that the slots are free */
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    CHECK_EQ(ign_channel_collect(p), IGN_OK);
    CHECK_EQ(ign_slab_active(&p->slab), 0);
    ign_channel_close(c);
    ign_channel_close(p);
    unlink(file);
    free(c);
    free(p);
}

static void *take_two_later(void *arg)
{
    ign_channel *c = arg;
    ign_ring_entry entries[4];
    ign_message messages[4];
    uint32_t got;
    usleep(20000);
    CHECK_EQ(ign_channel_survey(c, 0, entries, messages, 4, &got), IGN_OK);
    ign_channel_take(c, 2);
    ign_channel_flush(c);
    return NULL;
}

static void progress_is_waited_for_without_a_consumer(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    ign_channel *p = blank(), *c = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    CHECK_EQ(send_number(p, 1), IGN_OK);
    CHECK_EQ(send_number(p, 2), IGN_OK);
    CHECK_EQ(ign_channel_wait_progress(p, 0, false, 1000000), IGN_TIMEOUT); /* nobody was ever there */
    CHECK_EQ(ign_channel_wait_progress(p, 0, true, 1000000), IGN_TIMEOUT);
    CHECK_EQ(ign_channel_wait_progress(p, 7, false, 0), IGN_OK);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    ign_channel_close(c); /* one was there and left */
    CHECK_EQ(ign_channel_wait_progress(p, 0, false, 1000000), IGN_TIMEOUT);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, take_two_later, c), 0);
    int rc;
    do
        rc = ign_channel_wait_progress(p, 0, false, SECOND);
    while (rc == IGN_TIMEOUT);
    CHECK_EQ(rc, IGN_OK);
    pthread_join(thread, NULL);
    CHECK_EQ(ign_channel_read_pos(p), 2);
    ign_channel_interrupt(p);
    CHECK_EQ(ign_channel_wait_progress(p, 2, false, SECOND), IGN_E_CLOSED);
    ign_channel_close(c);
    ign_channel_close(p);
    unlink(file);
    free(c);
    free(p);
}

static void a_label_is_what_its_maker_wrote(void)
{
    const char *file = fresh_path();
    uint8_t label[IGN_REGION_LABEL_MAX + 1];
    memset(label, 'l', sizeof label);
    ign_region_config config = small();
    config.label = label;
    config.label_bytes = IGN_REGION_LABEL_MAX + 1;
    ign_channel *p = blank(), *c = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_E_INVALID);
    config.label_bytes = IGN_REGION_LABEL_MAX;
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    CHECK_EQ(send_number(p, 1), IGN_OK);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    CHECK_EQ(c->region.label_bytes, IGN_REGION_LABEL_MAX);
    CHECK(memcmp(ign_region_label(&c->region), label, IGN_REGION_LABEL_MAX) == 0);
    CHECK_EQ(receive_number(c), 1);
    ign_channel_close(c);
    ign_channel_close(p);
    unlink(file);
    free(c);
    free(p);
}

static void a_child_is_refused(void)
{
    ign_channel *c = blank();
    ign_region_config config = small();
    CHECK_EQ(ign_channel_heap(c, &config), IGN_OK);
    pid_t child = fork();
    if (child == 0) {
        int ok = ign_region_check(&c->region) == IGN_E_FORKED && ign_channel_wait_items(c, 0, false) == IGN_E_FORKED;
        ign_channel_close(c); /* only unmaps */
        _exit(ok ? 0 : 2);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(send_number(c, 1), IGN_OK);
    CHECK_EQ(receive_number(c), 1);
    ign_channel_close(c);
    free(c);
}

static void put_at(const char *file, long offset, const void *bytes, size_t n)
{
    int fd = open(file, O_RDWR);
    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, bytes, n, offset), n);
    close(fd);
}

static void foreign_and_damaged_files(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    ign_channel *c = blank();
    int fd = open(file, O_RDWR | O_CREAT, 0600);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_E_MAGIC); /* empty */
    char text[8192];
    memset(text, 'x', sizeof text);
    CHECK_EQ(write(fd, text, sizeof text), sizeof text);
    close(fd);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_E_MAGIC);
    CHECK_EQ(ign_channel_open(c, "/tmp", IGN_CONSUMER), IGN_E_IO);
    CHECK_EQ(ign_channel_open(c, "/dev/null", IGN_CONSUMER), IGN_E_MAGIC);
    unlink(file);

    ign_channel *p = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    ign_region_header good;
    memcpy(&good, p->region.header, offsetof(ign_region_header, owners));
    size_t total = p->region.bytes;
    ign_channel_close(p);
    uint32_t version = 2;
    put_at(file, offsetof(ign_region_header, version), &version, 4);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_E_VERSION);
    put_at(file, 0, &good, offsetof(ign_region_header, owners));
    /* Every 32-bit word of the sizes, changed alone, is noticed. */
    for (size_t at = offsetof(ign_region_header, header_bytes); at < offsetof(ign_region_header, reserved); at += 4) {
        uint32_t word;
        memcpy(&word, (char *)&good + at, 4);
        for (uint32_t bit = 1; bit != 0; bit <<= 1) {
            uint32_t changed = word ^ bit;
            put_at(file, (long)at, &changed, 4);
            int rc = ign_channel_open(c, file, IGN_CONSUMER);
            /* Of the label only the length is in the header; whoever reads one checks what it says. */
            bool harmless = rc == IGN_OK && (at == offsetof(ign_region_header, max_message_bytes) ||
                                             (at == offsetof(ign_region_header, label_bytes) && changed <= IGN_REGION_LABEL_MAX));
            CHECK(harmless || rc == IGN_E_SIZE || rc == IGN_E_TRUNCATED);
            if (rc == IGN_OK)
                ign_channel_close(c);
        }
        put_at(file, (long)at, &word, 4);
    }
    CHECK_EQ(truncate(file, (off_t)total - 1), 0);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_E_TRUNCATED);
    CHECK_EQ(truncate(file, 100), 0);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_E_TRUNCATED);
    unlink(file);
    free(p), free(c);
}

#ifndef IGN_TEST_TSAN /* the fault strikes inside TSan's own runtime, whose lock the handler's accesses then want again */
static void a_file_that_shrinks_is_an_error_not_a_crash(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    ign_channel *p = blank(), *c = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    CHECK_EQ(send_number(p, 1), IGN_OK);
    CHECK_EQ(truncate(file, IGN_REGION_HEADER_BYTES), 0);
    CHECK_EQ(ign_channel_wait_items(c, 0, false), IGN_E_TRUNCATED); /* touches the ring: SIGBUS, caught */
    CHECK_EQ(ign_region_check(&c->region), IGN_E_TRUNCATED);
    CHECK_EQ(ign_region_check(&p->region), IGN_OK); /* has not touched it yet */
    CHECK_EQ(ign_region_check_size(&p->region), IGN_E_TRUNCATED);
    CHECK_EQ(truncate(file, 0), 0);
    ign_channel_close(p);
    ign_channel_close(c);
    unlink(file);
    free(p), free(c);
}

#endif

static void a_producer_that_lies(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    ign_channel *p = blank(), *c = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    static const ign_ring_entry lies[] = {
        {.slot = 24, .length = 1}, {.slot = UINT32_MAX, .length = 1}, {.slot = 0, .length = 129},
        {.slot = 0, .offset = 65535, .length = 1}, {.slot = 23, .offset = 1, .length = 1024}, {.slot = 0, .length = UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        CHECK_EQ(ign_ring_try_push_spsc(&p->forward_out, &lies[i]), IGN_OK);
        CHECK_EQ(receive_number(c), IGN_E_FOREIGN);
    }
    CHECK_EQ(send_number(p, 5), IGN_OK); /* and the stream goes on */
    CHECK_EQ(receive_number(c), 5);
    atomic_store(&p->forward_out.control->write_pos, 1000);
    CHECK_EQ(receive_number(c), -1000 - IGN_E_CORRUPT);
    ign_channel_close(p);
    ign_channel_close(c);
    unlink(file);
    free(p), free(c);
}

static void a_consumer_that_lies(void)
{
    const char *file = fresh_path();
    ign_region_config config = small();
    ign_channel *p = blank(), *c = blank();
    CHECK_EQ(ign_channel_create(p, file, &config, IGN_PRODUCER), IGN_OK);
    CHECK_EQ(ign_channel_open(c, file, IGN_CONSUMER), IGN_OK);
    CHECK_EQ(send_number(p, 1), IGN_OK);
    CHECK_EQ(receive_number(c), 1);
    for (uint32_t slot = 0; slot < 24; slot++)
        ign_channel_give_back(c, slot, 1); /* the one again, and others that were never sent */
    ign_channel_give_back(c, 999, 1);
    ign_channel_flush(c);
    CHECK_EQ(ign_channel_collect(p), IGN_OK);
    CHECK(p->bad_returns == 25);
    CHECK_EQ(ign_slab_active(&p->slab), 0);
    for (uint64_t i = 0; i < 16; i++)
        CHECK_EQ(send_number(p, i), IGN_OK); /* no slot twice */
    for (int i = 0; i < 16; i++)
        CHECK_EQ(receive_number(c), i);
    atomic_store(&c->forward_in.control->read_pos, 9999);
    for (int i = 0; i < 20; i++)
        if (send_number(p, 0) == IGN_E_CORRUPT)
            goto noticed;
    CHECK(false);
noticed:
    ign_channel_close(p);
    ign_channel_close(c);
    unlink(file);
    free(p), free(c);
}

/* One side per process, checked for order and content; the parent is the consumer. */
static void two_processes(void)
{
    const char *file = fresh_path();
    ign_region_config config;
    CHECK_EQ(ign_region_config_default(&config, 256, 4096), IGN_OK);
    job j = {.c = blank(), .count = ROUNDS / 2, .size = 160, .bulk = 8};
    CHECK_EQ(ign_channel_create(j.c, file, &config, IGN_CONSUMER), IGN_OK);
    pid_t child = fork();
    if (child == 0) {
        job mine = {.c = blank(), .count = j.count, .size = j.size, .bulk = j.bulk};
        if (ign_channel_open(mine.c, file, IGN_PRODUCER) != IGN_OK)
            _exit(2);
        produce(&mine);
        ign_channel_close(mine.c);
        _exit(0);
    }
    consume(&j);
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    ign_channel_close(j.c);
    unlink(file);
    free(j.c);
}

MAIN("channel", {
    RUN(limits);
    RUN(stress_small_ring);
    RUN(stress_few_slots);
    RUN(stress_roomy);
    RUN(roles_and_closing);
    RUN(killed_producer_leaves_what_it_sent);
    RUN(killed_consumer_loses_its_slots_to_the_next);
    RUN(what_was_surveyed_and_not_taken_is_the_next_consumers);
    RUN(progress_is_waited_for_without_a_consumer);
    RUN(a_label_is_what_its_maker_wrote);
    RUN(a_child_is_refused);
    RUN(foreign_and_damaged_files);
#ifndef IGN_TEST_TSAN
    RUN(a_file_that_shrinks_is_an_error_not_a_crash);
#endif
    RUN(a_producer_that_lies);
    RUN(a_consumer_that_lies);
    RUN(two_processes);
})
