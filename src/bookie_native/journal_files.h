/*
 * journal_files.h - the life cycle of journal files: prepared, written, retired, recycled.
 *
 * A file is named <16 hex digits of its id>.journal and has a fixed size. It is filled with zeros
 * and synced before it gets its name, so that a commit overwrites allocated blocks and its sync
 * writes no file system metadata. While the file in use is less than half full, the filling
 * proceeds in small writes with pauses, so that commits do not wait for it. Ids increase, and files
 * are used in the order of their ids. When the entry logs cover all groups of a file, the file is
 * recycled under a new id or removed. The journal's manifest lists a file before the journal gets
 * it, and drops it from the list before it is recycled or removed.
 *
 * First block of a file, little-endian:
 *
 *   offset size
 *        0    8  magic "PYXJRNL1"
 *        8    4  CRC32C of bytes 12..31
 *       12    4  format version, 1
 *       16    8  file id
 *       24    8  file size in bytes
 *
 * The blocks after it hold groups (journal.h), or leftovers of an earlier use of the file.
 */
#ifndef PYXBROKER_JOURNAL_FILES_H
#define PYXBROKER_JOURNAL_FILES_H

#include <pthread.h>
#include <stdatomic.h>

#include "disk.h"
#include "events.h"
#include "journal_manifest.h"

enum {
    JOURNAL_NAME_BYTES = 32,
    JOURNAL_FIRST_FILE_BYTES = 4 << 20, /* small, so that the very first start is fast */
    JOURNAL_VERSION = 1
};

typedef struct journal_file {
    uint64_t id;
    uint64_t bytes;
    uint64_t last_group; /* the last group in it; set when it is retired */
    int fd;              /* open for direct writing; -1: replayed, waits for its removal */
    struct journal_file *next;
} journal_file;

typedef struct journal_files {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    int event_fd;
    uint64_t full_bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* for this thread */
    pthread_cond_t ready; /* for the journal thread: a spare is ready, or the preparation failed */
    journal_file *fresh;  /* become spares when the journal's manifest lists them */
    journal_file *spares; /* ascending ids */
    journal_file *retired;
    journal_manifest manifest;    /* owned by this thread while it runs */
    uint64_t next_id;
    uint64_t checkpoint; /* groups up to this one are in entry logs */
    int error;           /* of the thread's last attempt; 0 when it succeeded */
    int first_wanted;    /* no file exists yet: prepare a small one */
    int waiting;         /* the journal thread waits for a spare */
    int closing;         /* the journal must not wait for a full disk */
    int saving;          /* space is short: keep at most SPARES_WANTED spares */
    int stopping;
    int running;
    _Atomic int starved;   /* the journal waits while the preparation fails */
    _Atomic int trouble;   /* error, for other threads */
    _Atomic int half_full; /* the file in use is more than half full */
} journal_files;

/* Formats and parses names. journal_file_parse returns 1 and *id, or 0. */
void journal_file_name(char name[JOURNAL_NAME_BYTES], uint64_t id);
int journal_file_parse(const char *name, uint64_t *id);

/* The content of a file's first block. */
typedef struct journal_header {
    uint64_t id, bytes;
    uint32_t version;
} journal_header;

/* Returns 1 and *out when the block is intact (of any version), or 0. */
int journal_header_decode(const uint8_t *block, journal_header *out);

/* Initializes the state, before any file is adopted. */
void journal_files_open(journal_files *files, const disk_calls *disk, events *log,
                        int directory_fd, int event_fd, uint64_t full_bytes);

enum journal_use {
    JOURNAL_UNUSABLE, /* to be removed: left over from a crash, or not writable */
    JOURNAL_SPARE,   /* contains no groups */
    JOURNAL_RETIRED  /* contains groups up to last_group */
};

/* Hands over a file found by replay. Returns 0 or an error. */
int journal_files_adopt(journal_files *files, uint64_t id, uint64_t bytes, enum journal_use use,
                        uint64_t last_group);

/* Creates a small first file if there is no spare, and starts the thread. When there is no space
 * for that file, the thread keeps retrying. Returns 0 or an error. */
int journal_files_start(journal_files *files);

/* While `on`, removes spares beyond the one that the journal needs next. Returns 1 when retired
 * files wait for a checkpoint, so that a flush would free their space. */
int journal_files_save_space(journal_files *files, int on);

/* Makes journal_files_take fail instead of waiting when a preparation fails. For the shutdown. */
void journal_files_begin_shutdown(journal_files *files);

/* Stops the thread and frees everything. */
void journal_files_close(journal_files *files);

/* Takes the next file with at least group_bytes of room for groups, waiting for its preparation.
 * Returns 0 and *out. During shutdown it may return NULL and the error instead (-ECANCELED: no
 * error occurred). Journal thread. */
int journal_files_take(journal_files *files, uint64_t group_bytes, journal_file **out);

/* Reports the bytes written to the journal's current file. Journal thread. */
static inline void journal_files_filled(journal_files *files, const journal_file *file,
                                        uint64_t bytes) {
    if (bytes > file->bytes / 2)
        atomic_store_explicit(&files->half_full, 1, memory_order_relaxed);
}

/* Retires a synced file, whose last group is file->last_group. */
void journal_files_retire(journal_files *files, journal_file *file);

/* Reports that synced entry logs contain all groups up to this one. Any thread. */
void journal_files_checkpoint(journal_files *files, uint64_t group);

#endif
