/* Sequences against a plain list: items are appended, die, are merged over parts and split, and each is found by every number that it has. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "../ignis_store_index.h"

#include <inttypes.h>

enum { MOST = 20000, STEPS = 6000 };

static uint64_t drawn;

static uint64_t draw(uint64_t n)
{
    drawn = drawn * 6364136223846793005ull + 1442695040888963407ull;
    return (drawn >> 33) % n;
}

static ign_ctl ctl;
static ign_seq *seq;

/* Living items, in order. */
static struct {
    uint64_t first, span;
} items[MOST];
static uint64_t count, behind; /* `behind`: the last number that was ever given */

static ign_item make(uint64_t first, uint64_t span)
{
    return (ign_item){.first = first, .left = span << 32 | span, .word = {first * 3}};
}

static void append(void)
{
    uint64_t first = behind + 1 + draw(3), span = 1 + draw(draw(10) == 0 ? 80 : 4);
    ign_item item = make(first, span);
    ign_seq_append(&ctl, seq, &item);
    items[count].first = first;
    items[count++].span = span;
    behind = first + span - 1;
}

static void forget(uint64_t at, uint64_t gone)
{
    memmove(&items[at], &items[at + gone], (size_t)(count - at - gone) * sizeof items[0]);
    count -= gone;
}

static void kill(uint64_t at)
{
    ign_cursor cursor;
    ign_item *item = ign_seq_find(&ctl, seq, items[at].first, &cursor);
    CHECK(item != NULL && item->first == items[at].first);
    ign_seq_set_left(&ctl, seq, &cursor, 0);
    forget(at, 1);
}

/* As a move does: an item takes over all that lives of it and of those that follow it. */
static void merge(uint64_t at, uint64_t further)
{
    ign_cursor cursor;
    uint64_t first = items[at].first, last = items[at + further].first + items[at + further].span - 1, made = 0;
    ign_item pieces[64];
    for (uint64_t i = at; i <= at + further; i++) /* what is next to each other becomes one */
        if (made > 0 && IGN_ITEM_LAST(&pieces[made - 1]) + 1 == items[i].first)
            pieces[made - 1] = make(pieces[made - 1].first, IGN_ITEM_SPAN(&pieces[made - 1]) + items[i].span);
        else
            pieces[made++] = make(items[i].first, items[i].span);
    for (uint64_t i = 0; i <= further; i++) {
        CHECK_EQ(ign_seq_find(&ctl, seq, first, &cursor)->first, first);
        if (i < further) {
            CHECK(ign_seq_next(&ctl, seq, &cursor) != NULL);
            ign_seq_remove(&ctl, seq, &cursor);
        }
    }
    ign_seq_splice(&ctl, seq, &cursor, true, pieces, made);
    CHECK_EQ(IGN_ITEM_LAST(&pieces[made - 1]), last);
    forget(at, further + 1 - made);
    for (uint64_t i = 0; i < made; i++) {
        items[at + i].first = pieces[i].first;
        items[at + i].span = IGN_ITEM_SPAN(&pieces[i]);
    }
}

static void compare(void)
{
    ign_cursor at;
    uint64_t i = 0;
    for (ign_item *e = ign_seq_find(&ctl, seq, 0, &at); e != NULL; e = ign_seq_next(&ctl, seq, &at), i++) {
        CHECK(i < count);
        CHECK(e->first == items[i].first && IGN_ITEM_SPAN(e) == items[i].span && IGN_ITEM_LEFT(e) == items[i].span);
    }
    CHECK_EQ(i, count);
    for (i = 0; i < count; i++)
        for (int k = 0; k < 3; k++) {
            uint64_t number = k == 0 ? items[i].first : k == 1 ? items[i].first + items[i].span - 1 : items[i].first - draw(items[i].first < 3 ? items[i].first : 3);
            uint64_t want = i;
            while (want > 0 && items[want - 1].first + items[want - 1].span > number)
                want--;
            const ign_item *e = ign_seq_find(&ctl, seq, number, &at);
            CHECK(e != NULL);
            CHECK_EQ(e->first, items[want].first);
        }
}

static void one_life(uint64_t seed)
{
    ign_store_io *io = store_dir_open();
    drawn = seed;
    count = behind = 0;
    CHECK_EQ(ign_ctl_create(&ctl, io, "control", 1 << 28, 1 << 16, 1 << 20), 0);
    ctl.alone = false; /* so that transactions can be undone */
    ign_ctl_begin(&ctl);
    uint64_t offset = ign_ctl_alloc(&ctl, sizeof *seq);
    CHECK(offset != 0);
    seq = ign_ctl_at(&ctl, offset);
    memset(seq, 0, sizeof *seq);
    ign_ctl_commit(&ctl, 1);
    uint64_t deaths = 1 + draw(6), merges = draw(4);
    for (int step = 0; step < STEPS; step++) {
        bool undone = draw(8) == 0;
        static uint8_t kept[sizeof items];
        uint64_t had = count, was = behind;
        if (undone)
            memcpy(kept, items, (size_t)count * sizeof items[0]);
        ign_ctl_begin(&ctl);
        for (uint64_t calls = 1 + draw(4); calls > 0; calls--) {
            uint64_t what = draw(4 + deaths + merges);
            if ((what < 4 || count < 2) && count < MOST)
                append();
            else if (what < 4 + deaths && count > 0)
                kill(draw(3) == 0 ? 0 : draw(3) == 0 ? count - 1 : draw(count));
            else if (count > 1) {
                uint64_t at = draw(count - 1), most = count - 1 - at;
                merge(at, draw(most < 60 ? most + 1 : 60));
            }
        }
        CHECK(!ctl.no_room);
        if (undone) {
            CHECK(ign_ctl_roll_back(&ctl));
            memcpy(items, kept, (size_t)had * sizeof items[0]);
            count = had;
            behind = was;
        } else
            ign_ctl_commit(&ctl, (uint64_t)step + 1);
        if (step % 20 == 0)
            compare();
    }
    compare();
    ign_ctl_close(&ctl);
    store_dir_close(io);
}

static void lives(void)
{
    for (uint64_t seed = 1; seed <= 40; seed++)
        one_life(seed);
}

MAIN("store_index", { RUN(lives); })
