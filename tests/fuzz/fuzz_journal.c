/*
 * fuzz_journal.c - replay of journal files with arbitrary content.
 *
 * The input is a list of instructions that put bytes, and headers with right checksums around
 * arbitrary fields, into up to three journal files; bytes alone would hardly ever pass a checksum.
 * Replay must end, read only what the files hold, and hand out only records that fit their payload
 * checksum. A second replay of the same files must say the same.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "replay.h"
#include "sim_disk.h"

enum {
    FILE_BYTES = 16 * BLOCK_BYTES,
    FILES = 3,
    SALT = 7,
    EVENTS_TAKEN_MAX = EVENTS_RING_MAX + 1
};

typedef struct input {
    const uint8_t *data;
    size_t bytes;
} input;

static uint64_t take(input *in, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && in->bytes > 0; i++, in->bytes--)
        value = value << 8 | *in->data++;
    return value;
}

/* Headers are made here anew from the layouts in the headers, so that the fuzzer shares no code
 * with what it tests. */
static void put_group(uint8_t *file, input *in, uint64_t file_id) {
    uint8_t *at = file + take(in, 1) % 16 * BLOCK_BYTES;
    memcpy(at, "PBJG", 4);
    store_le64(at + 8, take(in, 1) % 8 == 0 ? take(in, 1) : file_id);
    store_le64(at + 16, take(in, 1));
    store_le64(at + 24, take(in, 1));
    store_le64(at + 32, take(in, 1) % 8 == 0 ? take(in, 1) : SALT);
    store_le32(at + 40, (uint32_t)take(in, 3));
    store_le32(at + 44, (uint32_t)take(in, 1));
    store_le64(at + 48, take(in, 1));
    store_le32(at + 56, (uint32_t)take(in, 1));
    store_le32(at + 60, 0);
    store_le32(at + 4, crc32c(0, at + 8, 56));
}

static void put_record(uint8_t *file, input *in) {
    size_t place = take(in, 2) * 8 % (FILE_BYTES - 64);
    uint8_t seed[16], *at = file + place;
    store_le64(seed, take(in, 1));
    store_le64(seed + 8, SALT);
    uint32_t length = (uint32_t)take(in, 2);
    size_t there = FILE_BYTES - place - 32;
    store_le32(at + 4, length <= there ? crc32c(0, at + 32, length) : 0);
    store_le32(at + 8, length);
    store_le32(at + 12, (uint32_t)take(in, 1) % 5);
    store_le64(at + 16, take(in, 1));
    store_le64(at + 24, take(in, 1));
    store_le32(at, crc32c(crc32c(0, seed, 16), at + 4, 28));
}

static void put_header(uint8_t *file, input *in, uint64_t file_id) {
    memcpy(file, "PYXJRNL1", 8);
    store_le32(file + 12, 1);
    store_le64(file + 16, take(in, 1) % 8 == 0 ? take(in, 1) : file_id);
    store_le64(file + 24, take(in, 1) % 8 == 0 ? take(in, 4) : FILE_BYTES);
    store_le32(file + 8, crc32c(0, file + 12, 20));
}

static void put_bytes(uint8_t *file, input *in) {
    size_t place = take(in, 2) % FILE_BYTES, count = take(in, 1);
    for (size_t i = 0; i < count && place + i < FILE_BYTES; i++)
        file[place + i] = (uint8_t)take(in, 1);
}

/* What a replay found, as one number. */
typedef struct digest {
    uint64_t records, damaged;
    uint32_t crc;
} digest;

static int on_record(void *arg, segment *s, const record *r, int intact) {
    digest *d = arg;
    if (!intact) {
        d->damaged++;
        return 0;
    }
    if (r->payload < s->base || r->payload + r->length > s->base + s->used)
        abort();
    if (crc32c(0, r->payload, r->length) != r->payload_crc || r->ledger_id < 0)
        abort();
    d->records++;
    d->crc = crc32c(d->crc, r->payload, r->length);
    return 0;
}

static void notified(void *arg) {
    (void)arg;
}

/* Returns 0 when a file was refused, before any was read, because a newer format made it. */
static int replay_once(sim_disk *disk, uint64_t checkpoint, digest *d) {
    const disk_calls *calls = sim_disk_calls(disk);
    static events log;
    events_open(&log, -1);
    int fd = calls->open_directory(calls->ctx, "/journal");
    journal_files files;
    journal_files_open(&files, calls, &log, fd, -1, FILE_BYTES);
    replay_options options = {.disk = calls,
                              .events = &log,
                              .directory_fd = fd,
                              .files = &files,
                              .checkpoint = checkpoint};
    replay_sink sink = {.arg = d,
                        .pool = segment_pool_open(4 * BLOCK_BYTES, 4, notified, NULL),
                        .record = on_record};
    replay_result result;
    char error[256] = "";
    int status = replay_journal(&options, &sink, &result, error, sizeof error);
    if (status == -EPROTO ? d->records > 0 || strstr(error, "newer") == NULL
                          : status < 0 || result.records != d->records)
        abort();
    storage_event event;
    for (int i = 0; i < EVENTS_TAKEN_MAX && events_take(&log, &event); i++)
        if (strlen(event.text) == 0)
            abort();
    journal_files_close(&files);
    segment_pool_close(sink.pool);
    calls->close(calls->ctx, fd);
    events_close(&log);
    return status == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static uint8_t content[FILES][FILE_BYTES];
    input in = {data, bytes};
    memset(content, 0, sizeof content);
    uint64_t checkpoint = take(&in, 1) % 4;
    for (uint64_t id = 1; id <= FILES; id++)
        put_header(content[id - 1], &(input){(const uint8_t *)"\1\1", 2}, id);
    while (in.bytes > 0) {
        unsigned what = (unsigned)take(&in, 1);
        uint64_t id = 1 + what / 4 % FILES;
        if (what % 4 == 0)
            put_group(content[id - 1], &in, id);
        else if (what % 4 == 1)
            put_record(content[id - 1], &in);
        else if (what % 64 == 2)
            put_header(content[id - 1], &in, id);
        else
            put_bytes(content[id - 1], &in);
    }
    digest found[2] = {{0}};
    int taken[2];
    for (int i = 0; i < 2; i++) {
        sim_disk *disk = sim_disk_new();
        for (uint64_t id = 1; id <= FILES; id++) {
            char name[JOURNAL_NAME_BYTES];
            journal_file_name(name, id);
            sim_disk_put(disk, "/journal", name, content[id - 1], FILE_BYTES);
        }
        taken[i] = replay_once(disk, checkpoint, &found[i]);
        if (!sim_disk_clean(disk))
            abort();
        sim_disk_free(disk);
    }
    if (taken[0] != taken[1] || memcmp(&found[0], &found[1], sizeof found[0]) != 0)
        abort();
    return 0;
}
