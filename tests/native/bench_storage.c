/*
 * bench_storage.c - what an add costs its owner, and what an entry costs the process, from add to
 * disk and back: bench_storage DIRECTORY ENTRY_BYTES ENTRIES RUN, built and run by build.sh bench.
 *
 * The owner's time is CPU time of the calling thread in storage_add and storage_commit; the
 * process's is user and system time of all threads. A run is added, committed and waited for before
 * the next.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "crc32c.h"
#include "storage.h"

enum { HEADER_BYTES = 36, LEDGER = 77, READ_ENTRIES = 512, READ_BYTES = 1 << 20 };

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void wait_ring(storage *s) {
    struct pollfd poller = {.fd = storage_event_fd(s), .events = POLLIN};
    uint64_t count;
    if (poll(&poller, 1, 1000) == 1 && read(poller.fd, &count, sizeof count) < 0)
        perror("eventfd");
}

static storage *open_at(const char *directory) {
    char journal[512], ledgers[512], error[512];
    snprintf(journal, sizeof journal, "%s/journal", directory);
    snprintf(ledgers, sizeof ledgers, "%s/ledgers", directory);
    storage_options options = {.journal_directory = journal,
                               .ledger_directory = ledgers,
                               .journal_file_bytes = 128u << 20,
                               .dirty_bytes_max = 64u << 20,
                               .cache_bytes_max = 192u << 20,
                               .entry_bytes_max = 6u << 20,
                               .journal_sync_data = 1};
    storage *s = NULL;
    double start = seconds(CLOCK_MONOTONIC);
    if (storage_open(&options, &s, error, sizeof error) < 0) {
        fprintf(stderr, "bench_storage: %s\n", error);
        exit(1);
    }
    storage_stats stats;
    storage_get_stats(s, &stats);
    printf("  open: %.1f ms, %llu entries replayed\n", (seconds(CLOCK_MONOTONIC) - start) * 1e3,
           (unsigned long long)stats.replayed_entries);
    return s;
}

static void write_all(storage *s, const char *lap, uint32_t bytes, long first, long last, int run) {
    long entries = last - first;
    storage_stats before, stats;
    storage_get_stats(s, &before);
    uint8_t header[HEADER_BYTES] = {0}, *data = malloc(bytes);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 31);
    uint32_t crc = crc32c(0, data, bytes);
    store_be64(header, LEDGER);
    double wall = seconds(CLOCK_MONOTONIC), process = seconds(CLOCK_PROCESS_CPUTIME_ID), owner = 0;
    for (long entry = first; entry < last;) {
        double start = seconds(CLOCK_THREAD_CPUTIME_ID);
        int64_t sequence = 0;
        for (int i = 0; i < run && entry < last; i++, entry++) {
            store_be64(header + 8, (uint64_t)entry);
            int64_t added = storage_add(s, header, sizeof header, data, bytes, crc,
                                        STORAGE_ADD_HAS_CRC);
            if (added < 0)
                break;
            sequence = added;
        }
        storage_commit(s);
        owner += seconds(CLOCK_THREAD_CPUTIME_ID) - start;
        if (sequence == 0)
            wait_ring(s);
        while (storage_durable_sequence(s) < (uint64_t)sequence && storage_failure(s) == 0)
            wait_ring(s);
    }
    wall = seconds(CLOCK_MONOTONIC) - wall;
    process = seconds(CLOCK_PROCESS_CPUTIME_ID) - process;
    storage_get_stats(s, &stats);
    uint64_t syncs = stats.syncs - before.syncs;
    printf("  add, %s: owner %.0f ns, process %.2f us, wall %.2f us an entry; %.0f MB/s; "
           "%llu syncs of %.0f us\n",
           lap, owner / (double)entries * 1e9, process / (double)entries * 1e6,
           wall / (double)entries * 1e6, bytes * (double)entries / wall / 1e6,
           (unsigned long long)syncs,
           (double)(stats.sync_ns_total - before.sync_ns_total) / 1e3 /
               (double)(syncs > 0 ? syncs : 1));
    free(data);
}

static void read_all(storage *s, long entries) {
    static entry_ref refs[READ_ENTRIES];
    double wall = seconds(CLOCK_MONOTONIC), process = seconds(CLOCK_PROCESS_CPUTIME_ID);
    long cached = 0;
    for (int64_t next = 0; next < entries;) {
        int64_t count = storage_read_cached(s, LEDGER, next, entries - 1, READ_ENTRIES, READ_BYTES,
                                            refs);
        cached += count;
        if (count == 0) {
            storage_read_submit(s, LEDGER, next, entries - 1, READ_ENTRIES, READ_BYTES, refs, 1);
            read_completion done;
            while (storage_read_completions(s, &done, 1) == 0)
                wait_ring(s);
            count = done.count;
        }
        if (count < 0) {
            fprintf(stderr, "bench_storage: reading entry %lld: %lld\n", (long long)next,
                    (long long)count);
            exit(1);
        }
        storage_unpin(refs, (int)count);
        next += count;
    }
    printf("  read: process %.3f us, wall %.3f us an entry; %ld of %ld from the cache\n",
           (seconds(CLOCK_PROCESS_CPUTIME_ID) - process) / (double)entries * 1e6,
           (seconds(CLOCK_MONOTONIC) - wall) / (double)entries * 1e6, cached, entries);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: bench_storage DIRECTORY ENTRY_BYTES ENTRIES RUN\n");
        return 2;
    }
    uint32_t bytes = (uint32_t)strtoul(argv[2], NULL, 10);
    long entries = strtol(argv[3], NULL, 10);
    printf("%ld entries of %u bytes, %s in a run\n", entries, bytes, argv[4]);
    storage *s = open_at(argv[1]);
    /* The first lap through the cache's memory meets pages that were never touched. */
    write_all(s, "first lap", bytes, 0, entries / 2, atoi(argv[4]));
    write_all(s, "later", bytes, entries / 2, entries, atoi(argv[4]));
    read_all(s, entries);
    storage_close(s, 0);
    s = open_at(argv[1]);
    storage_close(s, 1);
    s = open_at(argv[1]);
    read_all(s, entries);
    storage_close(s, 1);
    return 0;
}
