/*
 * journal_manifest.h - the list of the journal files, so that a missing one is noticed.
 *
 * The file journal.manifest has the ids of the files that must be there. The owner of the files
 * keeps this order, which no crash can turn into a false alarm:
 *
 *   - a file is listed after it is durable under its name, and before anything relies on it;
 *   - a file is taken off the list, durably, before it is renamed or removed.
 *
 * So a listed file that is not there was taken away by somebody else. A file that is there without
 * being listed is nothing special: a crash came between two steps.
 *
 * The file consists of four copies of the list, each a quarter of its size and a multiple of 4096
 * bytes. The first two have one state, the last two another; the state with the higher sequence
 * counts. A change is written over the older state, both copies at once, and synced: a torn write
 * leaves the state before it, and a full disk has room for it. There are two copies so that damage
 * to one costs nothing. When they are too small, a larger file is written under another name,
 * synced, and takes the name.
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
    uint64_t sequence;   /* of the last write, successful or not */
    uint64_t copy_bytes; /* of the file's copies; 0: there is no file yet */
    int state;           /* 0 or 1: which two copies have what was last synced */
    int changed;         /* the list is not, or not for certain, what the file has */
} journal_manifest;

/* Makes an empty list, not stored anywhere. */
void journal_manifest_open(journal_manifest *m, const disk_calls *disk, int directory_fd);
void journal_manifest_close(journal_manifest *m);

/* Reads the file, patiently. Returns 1, or 0 when there is none (the directory is new, or of an
 * older version) or when nothing in it is intact, which is told to the operator; or an error, for
 * which error holds a sentence. */
int journal_manifest_read(journal_manifest *m, events *events, char *error, size_t error_bytes);

/* 1 when the id is listed. */
int journal_manifest_has(const journal_manifest *m, uint64_t id);

/* Change the list in memory, which journal_manifest_store makes durable. The first returns 0 or
 * -ENOMEM. */
int journal_manifest_add(journal_manifest *m, uint64_t id);
void journal_manifest_remove(journal_manifest *m, uint64_t id);

/* Makes the list durable, if it has changed or was never stored. Returns 0 or an error. After an
 * error the disk may have either state, so nothing that was taken off the list may be removed, also
 * no file that was just added: call it again. */
int journal_manifest_store(journal_manifest *m);

#endif
