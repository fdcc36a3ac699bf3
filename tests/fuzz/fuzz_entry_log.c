/*
 * fuzz_entry_log.c - opening and reading entry logs with arbitrary content.
 *
 * The input changes bytes of a small log, cuts or extends it, and makes the checksums of footer,
 * table and rows right again, or not. Opening and reading must stay inside the file, and serve an
 * entry only when its bytes have the checksum that a record states for just this entry.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "entry_log_index.h"
#include "sim_disk.h"

enum { LOG_ID = 3, LEDGERS = 3, ENTRIES = 5, LOG_BYTES = 3 * BLOCK_BYTES };

/* A log as the layout in entry_log.h describes it, made here anew; returns where its index is. */
static size_t build(uint8_t *log) {
    uint8_t seed[16] = {LOG_ID};
    size_t at = BLOCK_BYTES;
    uint8_t index[LEDGERS * ENTRIES * LOG_ENTRY_BYTES], table[LEDGERS * LOG_ROW_BYTES] = {0};
    memset(log, 0, LOG_BYTES);
    for (int i = 0; i < LEDGERS * ENTRIES; i++) {
        uint32_t length = 20 + (uint32_t)i * 11;
        memset(log + at + 32, i + 1, length);
        store_le32(log + at + 4, crc32c(0, log + at + 32, length));
        store_le32(log + at + 8, length);
        store_le32(log + at + 12, RECORD_ENTRY);
        store_le64(log + at + 16, (uint64_t)(i / ENTRIES));
        store_le64(log + at + 24, (uint64_t)(i % ENTRIES));
        store_le32(log + at, crc32c(crc32c(0, seed, 16), log + at + 4, 28));
        uint8_t *slot = index + i * LOG_ENTRY_BYTES, *row = table + i / ENTRIES * LOG_ROW_BYTES;
        store_le64(slot, (uint64_t)(i % ENTRIES));
        store_le32(slot + 8, (uint32_t)(at / 8));
        store_le32(slot + 12, length);
        if (i % ENTRIES == 0)
            store_le64(row + 24, at);
        at += round_up(32 + length, 8);
        store_le64(row + 32, at - load_le64(row + 24));
    }
    memcpy(log + at, index, sizeof index);
    for (int i = 0; i < LEDGERS; i++) {
        uint8_t *row = table + i * LOG_ROW_BYTES;
        store_le64(row, (uint64_t)i);
        store_le64(row + 16, ENTRIES - 1);
        store_le64(row + 40, at + (size_t)i * ENTRIES * LOG_ENTRY_BYTES);
        store_le32(row + 48, ENTRIES);
    }
    memcpy(log + at + sizeof index, table, sizeof table);
    uint8_t *footer = log + LOG_BYTES - LOG_FOOTER_BYTES;
    memcpy(footer, "PYXEFTR1", 8);
    store_le32(footer + 12, 1);
    store_le64(footer + 16, LOG_ID);
    store_le64(footer + 40, at + sizeof index);
    store_le32(footer + 48, LEDGERS);
    store_le64(footer + 64, LOG_BYTES);
    return at;
}

/* Makes checksums right: of each row's index, of the table, of the footer. */
static void make_right(uint8_t *log, size_t bytes, unsigned which) {
    if (bytes < BLOCK_BYTES)
        return;
    uint8_t *footer = log + bytes - LOG_FOOTER_BYTES;
    uint64_t table = load_le64(footer + 40), rows = load_le32(footer + 48);
    if (table <= bytes && rows <= (bytes - table) / LOG_ROW_BYTES) {
        for (uint64_t i = 0; i < rows && (which & 1) != 0; i++) {
            uint8_t *row = log + table + i * LOG_ROW_BYTES;
            uint64_t index = load_le64(row + 40), entries = load_le32(row + 48);
            if (index <= bytes && entries <= (bytes - index) / LOG_ENTRY_BYTES)
                store_le32(row + 52, crc32c(0, log + index, entries * LOG_ENTRY_BYTES));
        }
        if ((which & 2) != 0)
            store_le32(footer + 52, crc32c(0, log + table, rows * LOG_ROW_BYTES));
    }
    if ((which & 4) != 0)
        store_le32(footer + 8, crc32c(0, footer + 12, LOG_FOOTER_BYTES - 12));
}

/* Reads every entry of a row through its index; log is the file's content. */
static void read_row(log_indexes *indexes, log_row *row, const uint8_t *log, size_t bytes) {
    if (log_indexes_ensure(indexes, row) < 0)
        abort();
    int64_t wanted[] = {row->first_entry, row->last_entry, 0, 2, INT64_MAX, -1};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        uint32_t number = log_row_position(row, wanted[i]);
        if (number > row->entry_count)
            abort();
        for (int steps = 0; number < row->entry_count && steps < 2 * ENTRIES; number++, steps++) {
            log_place place;
            const uint8_t *payload;
            int64_t entry = log_row_entry(row, number, &place);
            if (place.offset > bytes ||
                !log_record_check(row, entry, place.length, log + place.offset,
                                  bytes - place.offset, &payload))
                continue;
            if (payload < log || payload + place.length > log + bytes)
                abort();
            const uint8_t *header = payload - RECORD_HEADER_BYTES;
            if (load_le64(header + 16) != (uint64_t)row->ledger_id ||
                load_le64(header + 24) != (uint64_t)entry ||
                crc32c(0, payload, place.length) != load_le32(header + 4))
                abort();
        }
    }
}

static void open_and_read(const uint8_t *log, size_t bytes) {
    sim_disk *disk = sim_disk_new();
    const disk_calls *calls = sim_disk_calls(disk);
    char name[LOG_NAME_BYTES], error[256] = "";
    entry_log_name(name, LOG_ID);
    sim_disk_put(disk, "/ledgers", name, log, bytes);
    static events events;
    events_open(&events, -1);
    int fd = calls->open_directory(calls->ctx, "/ledgers");
    entry_log *opened = NULL;
    int status = entry_log_open(calls, &events, fd, LOG_ID, &opened, error, sizeof error);
    if (status < 0 && (status != -EPROTONOSUPPORT || error[0] == '\0'))
        abort();
    log_indexes indexes;
    /* Room for one index only, so that most are let go and come back. */
    log_indexes_open(&indexes, calls, &events, fd, ENTRIES * LOG_ENTRY_BYTES);
    for (size_t i = 0; status == 0 && i < 2 * opened->row_count; i++)
        read_row(&indexes, &opened->rows[i % opened->row_count], log, bytes);
    if (status == 0) {
        log_indexes_release(&indexes, opened);
        if (indexes.bytes != 0 || indexes.latest != NULL || indexes.oldest != NULL)
            abort();
        entry_log_free(opened);
    }
    calls->close(calls->ctx, fd);
    events_close(&events);
    if (!sim_disk_clean(disk))
        abort();
    sim_disk_free(disk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static uint8_t log[LOG_BYTES];
    if (bytes < 3)
        return 0;
    size_t index = build(log), size = LOG_BYTES;
    make_right(log, size, 7);
    unsigned which = data[0];
    if (data[1] % 8 == 0)
        size = (size_t)data[2] * 48;
    /* Changes of one byte: two bytes of place, half of them in what is not records, and its value.
     */
    for (size_t at = 3; at + 3 <= bytes; at += 3) {
        size_t place = (size_t)data[at] << 8 | data[at + 1];
        place = place % 2 == 0 ? place % LOG_BYTES : index + place / 2 % (LOG_BYTES - index);
        log[place] = data[at + 2];
    }
    make_right(log, size, which);
    open_and_read(log, size);
    return 0;
}
