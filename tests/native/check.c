/* check.c - running tests. */
#include "check.h"

#include <string.h>

jmp_buf check_escape;
const char *check_context;

int check_main(int argc, char **argv, const check_test *tests, size_t count) {
    /* volatile: they are read after a longjmp. */
    volatile int failed = 0, run = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (volatile size_t i = 0; i < count; i++) {
        if (argc > 1 && strstr(tests[i].name, argv[1]) == NULL)
            continue;
        run++;
        check_context = NULL;
        if (setjmp(check_escape) == 0) {
            tests[i].run();
            printf("ok      %s\n", tests[i].name);
        } else {
            failed++;
            printf("FAILED  %s\n", tests[i].name);
        }
    }
    if (run == 0) {
        printf("FAILED  no test has that name\n");
        return 1;
    }
    return failed > 0;
}
