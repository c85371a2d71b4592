/* What MessagePack may have for keys: each type as a key and as a value, depth, integers, and bytes that are cut short. Prints
 * one line; exit status 0 when all held. */
#include "../ignis_error.h"
#include "../ignis_pack.h"

#include <string.h>

#include "check.h"

static ign_pack_found found;

/* In memory of its own, exactly as large, so that a sanitizer sees one byte too far. */
static int check(const void *src, size_t len, uint32_t max_integers)
{
    uint8_t *copy = malloc(len != 0 ? len : 1);
    CHECK(copy != NULL);
    if (len != 0)
        memcpy(copy, src, len);
    found = (ign_pack_found){0};
    int code = ign_pack_check(copy, len, max_integers, &found);
    free(copy);
    return code;
}

#define CODE(bytes) check(bytes, sizeof(bytes) - 1, 1000)

static void test_keys_with_a_secret(void)
{
    CHECK_EQ(CODE(""), IGN_OK);
    CHECK_EQ(CODE("\xC0"), IGN_OK);
    CHECK_EQ(CODE("\x82\xA1" "a\xC0\xD9\x01" "b\xC0"), IGN_OK);
    CHECK_EQ(CODE("\xDE\x00\x03\xC4\x01z\xC0\xC5\x00\x01y\xC0\xC6\x00\x00\x00\x01x\xC0"), IGN_OK);
    CHECK_EQ(CODE("\x83\xC0\x01\xC2\x02\xC3\x03"), IGN_OK);
    CHECK_EQ(CODE("\xDF\x00\x00\x00\x03\x07\xC0\xE0\xC0\xCF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xC0"), IGN_OK);
}

static void test_keys_without_a_secret(void)
{
    static const struct { const char *bytes; size_t len; const char *kind; } keys[] = {
        {"\x90", 1, "array"},        {"\x91\x01", 2, "array"},      {"\xDC\x00\x00", 3, "array"},
        {"\xDD\x00\x00\x00\x00", 5, "array"},                       {"\x80", 1, "map"},
        {"\xDE\x00\x00", 3, "map"},  {"\xDF\x00\x00\x00\x00", 5, "map"},
        {"\xCA\x00\x00\x00\x00", 5, "float"},                       {"\xCB\x00\x00\x00\x00\x00\x00\x00\x00", 9, "float"},
        {"\xC7\x01\x05q", 4, "extension"},                          {"\xC8\x00\x01\x05q", 5, "extension"},
        {"\xC9\x00\x00\x00\x01\x05q", 7, "extension"},              {"\xD4\x05q", 3, "extension"},
        {"\xD5\x05qq", 4, "extension"},                             {"\xD6\xFF\x00\x00\x00\x00", 6, "extension"},
        {"\xD7\xFFqqqqqqqq", 10, "extension"},                      {"\xD8\x05qqqqqqqqqqqqqqqq", 18, "extension"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint8_t bytes[64] = {0x92, 0x81, 0xA1, 'k'};
        size_t len = 4;
        memcpy(bytes + len, keys[i].bytes, keys[i].len); /* as a value */
        len += keys[i].len;
        bytes[len++] = 0x82;
        bytes[len++] = 0xA1;
        bytes[len++] = 'k';
        bytes[len++] = 0xC0;
        size_t place = len;
        CHECK_EQ(check(bytes, len, 0), IGN_OK);
        memcpy(bytes + len, keys[i].bytes, keys[i].len); /* as the second key */
        len += keys[i].len;
        bytes[len++] = 0xC0;
        CHECK_EQ(check(bytes, len, 0), IGN_E_INVALID);
        CHECK_EQ(found.at, place);
        CHECK_EQ(strcmp(ign_pack_kind(found.byte), keys[i].kind), 0);
        /* A decoder makes nothing of a key that is cut short, but its first byte says enough. */
        CHECK_EQ(check(bytes, place + 1, 0), IGN_E_INVALID);
    }
}

static void test_integers_are_counted_for_each_map(void)
{
    static const char two[] = "\x82\xCE\x00\x01\x00\x00\xC0\xD2\x00\x01\x00\x01\xC0";
    CHECK_EQ(check(two, sizeof two - 1, 2), IGN_OK);
    CHECK_EQ(check(two, sizeof two - 1, 1), IGN_E_TOO_LARGE);
    CHECK_EQ(found.at, 7);
    CHECK_EQ(check("\x81\xCF\x00\x00\x00\x00\x00\x00\x00\x01\xC0", 11, 0), IGN_E_TOO_LARGE); /* as it is written */
    CHECK_EQ(check("\x81\xD3\x00\x00\x00\x00\x00\x00\x00\x01\xC0", 11, 0), IGN_E_TOO_LARGE);
    CHECK_EQ(check("\x84\x01\xC0\xE0\xC0\xCC\xFF\xC0\xD0\x80\xC0", 11, 0), IGN_OK); /* of 8 bits: too few */
    CHECK_EQ(check("\x82\xCD\x12\x34\xC0\xD1\x80\x00\xC0", 9, 2), IGN_OK);
    CHECK_EQ(check("\x82\xCD\x12\x34\xC0\xD1\x80\x00\xC0", 9, 1), IGN_E_TOO_LARGE);
    CHECK_EQ(found.at, 5);
    CHECK_EQ(check("\x82\xCE\x00\x01\x00\x00\x81\xCE\x00\x01\x00\x00\xC0\xA0\xC0", 15, 1), IGN_OK); /* one in each */
    CHECK_EQ(check("\x94\x01\x02\x03\x04", 5, 0), IGN_OK);
    CHECK_EQ(check("\x82\xA0\x01\xA1z\x02", 6, 0), IGN_OK);
}

static void test_depth(void)
{
    uint8_t bytes[1005 + IGN_PACK_MAX_DEPTH];
    memset(bytes, 0x91, sizeof bytes);
    CHECK_EQ(check(bytes, IGN_PACK_MAX_DEPTH - 1, 0), IGN_OK);
    bytes[IGN_PACK_MAX_DEPTH - 1] = 0x90; /* an empty one is a value */
    CHECK_EQ(check(bytes, sizeof bytes, 0), IGN_OK);
    bytes[IGN_PACK_MAX_DEPTH - 1] = 0x91;
    CHECK_EQ(check(bytes, sizeof bytes, 0), IGN_FULL);
    CHECK_EQ(found.at, IGN_PACK_MAX_DEPTH - 1);
    /* Width does not count. */
    for (size_t i = 0; i < 1000; i++)
        bytes[5 + i] = 0x91, bytes[6 + i] = 0xC0, i++;
    memcpy(bytes, "\xDD\x00\x00\x01\xF4", 5);
    CHECK_EQ(check(bytes, 1005, 0), IGN_OK);
}

static void test_cut_short_and_no_messagepack(void)
{
    CHECK_EQ(CODE("\xC1"), IGN_OK);
    CHECK_EQ(CODE("\x81\xC1"), IGN_OK);
    CHECK_EQ(CODE("\xC0\x81\x90\xC0"), IGN_OK); /* behind the value: no decoder comes there */
    CHECK_EQ(CODE("\xDF\xFF\xFF\xFF\xFF\xA0\xC0\x90\xC0"), IGN_E_INVALID);
    CHECK_EQ(CODE("\xC6\xFF\xFF\xFF\xFF" "abc"), IGN_OK);
    static const char whole[] = "\x84\xA3" "abc\xCB\x00\x00\x00\x00\x00\x00\x00\x00\xC5\x00\x02yy\xC8\x00\x01\x01z\xD9\x01q\xDD\x00\x00\x00\x01\xD3"
                                "\x00\x00\x00\x00\x00\x00\x00\x00\xA1k\xDE\x00\x01\xA1m\xD1\x00\x00";
    for (size_t len = 0; len < sizeof whole; len++)
        CHECK_EQ(check(whole, len, 0), IGN_OK);
}

MAIN("pack", RUN(test_keys_with_a_secret); RUN(test_keys_without_a_secret); RUN(test_integers_are_counted_for_each_map);
     RUN(test_depth); RUN(test_cut_short_and_no_messagepack);)
