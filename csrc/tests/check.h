/* The little that the C tests need: an assertion that says where and what, and a way to run cases by name. */
#ifndef IGNIS_TEST_CHECK_H
#define IGNIS_TEST_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition);        \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#define CHECK_EQ(actual, expected)                                                                              \
    do {                                                                                                        \
        int64_t got_ = (int64_t)(actual), want_ = (int64_t)(expected);                                          \
        if (got_ != want_) {                                                                                    \
            fprintf(stderr, "%s:%d: %s: %s is %" PRId64 ", expected %" PRId64 "\n", __FILE__, __LINE__, __func__, \
                    #actual, got_, want_);                                                                      \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

#define RUN(test)                                   \
    do {                                            \
        test();                                     \
        ran_++;                                     \
    } while (0)

#define MAIN(name, ...)                             \
    int main(void)                                  \
    {                                               \
        int ran_ = 0;                               \
        __VA_ARGS__                                 \
        printf("%-14s %d cases\n", name, ran_);     \
        return 0;                                   \
    }

#endif
