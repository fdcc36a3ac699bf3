/* support.h - a storage on a simulated disk, entries whose content follows from their ids, and
 * waits. */
#ifndef PYXBROKER_TESTS_SUPPORT_H
#define PYXBROKER_TESTS_SUPPORT_H

#include "sim_disk.h"
#include "storage.h"

#define JOURNAL_DIRECTORY "/data/journal"
#define LEDGER_DIRECTORY "/data/ledgers"

enum { ENTRY_HEADER_BYTES = 36, PLACE_PATH_BYTES = 256 };

/* Small limits, so that a short test passes through every stage. */
storage_options small_options(const disk_calls *disk);

/* Opens with these options; fails the test when that fails. */
storage *must_open(const storage_options *options);

/* The packaged header and the data of an entry; data has room for 64 KiB. */
void entry_header(uint8_t header[ENTRY_HEADER_BYTES], int64_t ledger_id, int64_t entry_id);
uint32_t entry_data(uint8_t *data, int64_t ledger_id, int64_t entry_id);

/* Adds one entry, waiting while the cache is full. Returns the sequence or an error. */
int64_t add_entry(storage *s, int64_t ledger_id, int64_t entry_id);

/* Commits and waits until it is durable. Returns 0, or the failure of the journal. */
int wait_durable(storage *s, int64_t sequence);

/* Waits until something rang, at most a second. */
void wait_event(storage *s);

/* Asks for a flush of what is there and waits for it. */
void must_flush(storage *s);

/* Reads from the cache or else the logs. Returns 1 when the entry is there with the right content,
 * or an error; fails the test when it has any other content. */
int read_entry(storage *s, int64_t ledger_id, int64_t entry_id);

/* Takes all events; returns how many were errors, and prints them when the test is to know. */
int take_errors(storage *s);
int take_events(storage *s, const char *containing);

/* A temporary directory of the real file system, under TMPDIR. */
typedef struct place {
    char root[PLACE_PATH_BYTES], journal[PLACE_PATH_BYTES + 16], ledgers[PLACE_PATH_BYTES + 16];
} place;

void place_make(place *p);
void place_remove(place *p);
storage_options place_options(const place *p, const disk_calls *disk);

#endif
