/*
 * journal_manifest.h - the list of journal files, to detect a missing one.
 *
 * The file journal.manifest lists the ids of the files that must exist. The following order
 * prevents false alarms after a crash:
 *
 *   - a file is listed after it is durable under its name, and before it is used;
 *   - a file is removed from the list, durably, before it is renamed or removed.
 *
 * So a listed file that does not exist was removed from outside. A file that exists but is not
 * listed is normal: a crash happened between two steps.
 *
 * The manifest consists of four copies of the list, each a quarter of the file and a multiple of
 * 4096 bytes. Copies 1 and 2 hold one state, 3 and 4 another; the state with the higher sequence is
 * current. A change overwrites both copies of the older state and syncs: a torn write leaves the
 * current state intact, and a full disk has room for it. Two copies protect against damage to one.
 * When the copies become too small, a larger file is written under another name, synced, and
 * renamed.
 *
 * One copy, little-endian:
 *
 *   offset size
 *        0    8  magic "PYXMNFST"
 *        8    4  CRC32C of bytes 12..63 and of the ids
 *       12    4  format version, 1
 *       16    4  zero
 *       20    4  number of ids
 *       24    8  sequence; grows with each write
 *       32   32  zero
 *       64       ids of the files, 8 bytes each, ascending; then zeros
 */
#ifndef PYXBROKER_JOURNAL_MANIFEST_H
#define PYXBROKER_JOURNAL_MANIFEST_H

#include "disk.h"
#include "events.h"

enum { JOURNAL_MANIFEST_VERSION = 1 };

#define JOURNAL_MANIFEST_NAME "journal.manifest"

typedef struct journal_manifest {
    const disk_calls *disk;
    int directory_fd;
    uint64_t *ids; /* ascending */
    size_t count, capacity;
    uint64_t sequence;   /* of the last write, whether it succeeded or not */
    uint64_t copy_bytes; /* size of each copy in the file; 0: the file does not exist yet */
    int state;           /* 0 or 1: the pair of copies that was synced last */
    int changed;         /* the list differs, or may differ, from the file */
} journal_manifest;

/* Initializes an empty list that is not stored. */
void journal_manifest_open(journal_manifest *m, const disk_calls *disk, int directory_fd);
void journal_manifest_close(journal_manifest *m);

/* Reads the file, with retries. Returns 1, or 0 when it does not exist (a new directory, or one of
 * an older version) or no copy is intact, which is reported to the operator. Returns an error with
 * a message in `error` otherwise. */
int journal_manifest_read(journal_manifest *m, events *events, char *error, size_t error_bytes);

/* Returns 1 when the id is listed. */
int journal_manifest_has(const journal_manifest *m, uint64_t id);

/* Change the list in memory; journal_manifest_store makes it durable. journal_manifest_add returns
 * 0 or -ENOMEM. */
int journal_manifest_add(journal_manifest *m, uint64_t id);
void journal_manifest_remove(journal_manifest *m, uint64_t id);

/* Makes the list durable if it has changed or was never stored. Returns 0 or an error. After an
 * error the disk may hold either state: call it again before removing any file that was just added
 * to or removed from the list. */
int journal_manifest_store(journal_manifest *m);

#endif
