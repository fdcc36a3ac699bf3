/* check.h - the smallest test frame that says what failed, where, and goes on to the next test. */
#ifndef PYXBROKER_TESTS_CHECK_H
#define PYXBROKER_TESTS_CHECK_H

#include <setjmp.h>
#include <stdio.h>

typedef struct check_test {
    const char *name;
    void (*run)(void);
} check_test;

extern jmp_buf check_escape;
extern const char *check_context; /* printed with a failure; NULL for none */

/* Ends the running test as failed when the condition does not hold. Main thread only. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: %s%s%s\n", __FILE__, __LINE__, #condition,                              \
                   check_context == NULL ? "" : " with ",                                          \
                   check_context == NULL ? "" : check_context);                                    \
            longjmp(check_escape, 1);                                                              \
        }                                                                                          \
    } while (0)

/* Runs all tests (or those whose name contains argv[1]); returns the exit status. */
int check_main(int argc, char **argv, const check_test *tests, size_t count);

#endif
