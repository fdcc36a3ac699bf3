/* support.c - see support.h. */
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"

enum { ENTRY_DATA_BYTES_MAX = 3000, READ_BYTES_MAX = 1 << 20 };

storage_options small_options(const disk_calls *disk) {
    return (storage_options){.journal_directory = JOURNAL_DIRECTORY,
                             .ledger_directory = LEDGER_DIRECTORY,
                             .journal_file_bytes = 256 << 10,
                             .dirty_bytes_max = 128 << 10,
                             .cache_bytes_max = 1 << 20,
                             .entry_bytes_max = 32 << 10,
                             .journal_sync_data = 1,
                             .disk = disk};
}

storage *must_open(const storage_options *options) {
    storage *s = NULL;
    char error[512];
    int status = storage_open(options, &s, error, sizeof error);
    if (status < 0)
        printf("storage_open: %d %s\n", status, error);
    CHECK(status == 0);
    return s;
}

void entry_header(uint8_t header[ENTRY_HEADER_BYTES], int64_t ledger_id, int64_t entry_id) {
    memset(header, 0, ENTRY_HEADER_BYTES);
    store_be64(header, (uint64_t)ledger_id);
    store_be64(header + 8, (uint64_t)entry_id);
    store_be64(header + 16, (uint64_t)(entry_id - 1));
}

uint32_t entry_data(uint8_t *data, int64_t ledger_id, int64_t entry_id) {
    uint64_t random = (uint64_t)ledger_id * 1000003u + (uint64_t)entry_id;
    uint32_t length = (uint32_t)(sim_random(&random) % ENTRY_DATA_BYTES_MAX);
    for (uint32_t at = 0; at < length; at += 8) {
        uint64_t word = sim_random(&random);
        memcpy(data + at, &word, 8);
    }
    return length;
}

void wait_event(storage *s) {
    struct pollfd poller = {.fd = storage_event_fd(s), .events = POLLIN};
    uint64_t count;
    if (poll(&poller, 1, 1000) == 1)
        CHECK(read(poller.fd, &count, sizeof count) == sizeof count);
}

int64_t add_entry(storage *s, int64_t ledger_id, int64_t entry_id) {
    uint8_t header[ENTRY_HEADER_BYTES], data[ENTRY_DATA_BYTES_MAX + 8];
    entry_header(header, ledger_id, entry_id);
    uint32_t length = entry_data(data, ledger_id, entry_id);
    uint32_t crc = crc32c(0, data, length);
    for (;;) {
        int64_t sequence = storage_add(s, header, sizeof header, data, length, crc,
                                       entry_id % 2 == 0 ? STORAGE_ADD_HAS_CRC : 0);
        if (sequence != STORAGE_FULL)
            return sequence;
        storage_commit(s);
        wait_event(s);
    }
}

int wait_durable(storage *s, int64_t sequence) {
    storage_commit(s);
    while (storage_durable_sequence(s) < (uint64_t)sequence && storage_failure(s) == 0)
        wait_event(s);
    return storage_durable_sequence(s) >= (uint64_t)sequence ? 0 : storage_failure(s);
}

void must_flush(storage *s) {
    storage_stats before, now;
    storage_get_stats(s, &before);
    CHECK(before.dirty_bytes > 0);
    storage_flush(s);
    do {
        storage_commit(s);
        usleep(200);
        storage_get_stats(s, &now);
    } while (now.dirty_bytes > 0);
}

static int check_content(const entry_ref *ref, int64_t ledger_id, int64_t entry_id) {
    uint8_t header[ENTRY_HEADER_BYTES], data[ENTRY_DATA_BYTES_MAX + 8];
    entry_header(header, ledger_id, entry_id);
    uint32_t length = entry_data(data, ledger_id, entry_id);
    return ref->entry_id == entry_id && ref->length == sizeof header + length &&
           memcmp(ref->data, header, sizeof header) == 0 &&
           memcmp(ref->data + sizeof header, data, length) == 0;
}

int read_entry(storage *s, int64_t ledger_id, int64_t entry_id) {
    entry_ref ref;
    int64_t count = storage_read_cached(s, ledger_id, entry_id, entry_id, 1, READ_BYTES_MAX, &ref);
    if (count == 0) {
        CHECK(storage_read_submit(s, ledger_id, entry_id, entry_id, 1, READ_BYTES_MAX, &ref, 7) ==
              0);
        read_completion done;
        while (storage_read_completions(s, &done, 1) == 0)
            wait_event(s);
        CHECK(done.tag == 7);
        count = done.count;
    }
    if (count < 0)
        return (int)count;
    CHECK(count == 1);
    int right = check_content(&ref, ledger_id, entry_id);
    storage_unpin(&ref, 1);
    CHECK(right);
    return 1;
}

int take_errors(storage *s) {
    storage_event event;
    int errors = 0;
    while (storage_next_event(s, &event))
        if (event.severity == 2) {
            printf("event: %s\n", event.text);
            errors++;
        }
    return errors;
}

int take_events(storage *s, const char *containing) {
    storage_event event;
    int found = 0;
    while (storage_next_event(s, &event))
        found += strstr(event.text, containing) != NULL;
    return found;
}

void place_make(place *p) {
    const char *base = getenv("TMPDIR");
    snprintf(p->root, sizeof p->root, "%s/pyxbroker-faults-XXXXXX", base == NULL ? "/tmp" : base);
    CHECK(mkdtemp(p->root) != NULL);
    snprintf(p->journal, sizeof p->journal, "%s/journal", p->root);
    snprintf(p->ledgers, sizeof p->ledgers, "%s/ledgers", p->root);
}

static int remove_name(void *arg, const char *name) {
    char path[2 * PLACE_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", (const char *)arg, name);
    return unlink(path) == 0 ? 0 : -errno;
}

static void remove_directory(char *path) {
    int fd = disk_system()->open_directory(NULL, path);
    if (fd < 0)
        return;
    disk_system()->list(NULL, fd, remove_name, path);
    close(fd);
    rmdir(path);
}

void place_remove(place *p) {
    remove_directory(p->journal);
    remove_directory(p->ledgers);
    CHECK(rmdir(p->root) == 0);
}

storage_options place_options(const place *p, const disk_calls *disk) {
    storage_options options = small_options(disk);
    options.journal_directory = p->journal;
    options.ledger_directory = p->ledgers;
    return options;
}
