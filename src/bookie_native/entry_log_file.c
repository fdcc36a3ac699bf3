/* entry_log_file.c - names of entry log files, and errors of reading them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry_log.h"

int entry_log_error(int error) {
    switch (error) {
    case STORAGE_NO_LEDGER:
    case STORAGE_NO_ENTRY:
    case STORAGE_DAMAGED:
    case STORAGE_FULL:
    case STORAGE_FENCED: return -EIO;
    default: return error;
    }
}

void entry_log_name(char name[LOG_NAME_BYTES], uint64_t id) {
    snprintf(name, LOG_NAME_BYTES, "%016" PRIx64 ".log", id);
}

int entry_log_parse(const char *name, uint64_t *id) {
    if (strlen(name) != 20 || strcmp(name + 16, ".log") != 0 ||
        strspn(name, "0123456789abcdef") != 16)
        return 0;
    *id = strtoull(name, NULL, 16);
    return 1;
}
