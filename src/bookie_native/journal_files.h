/*
 * journal_files.h - the life of journal files: prepared, written, retired, recycled.
 *
 * A file is named <16 hex digits of its id>.journal and has a fixed size. It is written with zeros
 * from end to end and synced before it gets its name, so that a commit overwrites blocks that exist
 * and its sync has no file system metadata to write. That is done in small steps with pauses while
 * the file in use is not half full, so that no commit waits long behind it. Ids grow and are used
 * in order. When the entry logs cover all its groups a file becomes a spare under a new id, or is
 * removed. The journal's manifest lists a file before the journal gets it, and lists it no more
 * before it is recycled or removed.
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
 * The blocks behind it hold groups (journal.h) or anything left from a former life of the file.
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
    JOURNAL_FIRST_FILE_BYTES = 4 << 20, /* so that the very first start need not wait long */
    JOURNAL_VERSION = 1
};

typedef struct journal_file {
    uint64_t id;
    uint64_t bytes;
    uint64_t last_group; /* the last group in it; set when it is retired */
    int fd;              /* open for direct writing; -1: replayed, only waiting for its removal */
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
    pthread_cond_t work;  /* for the thread of this part */
    pthread_cond_t ready; /* for the journal thread: there is a spare, or an answer */
    journal_file *fresh;  /* to become spares when the journal's manifest lists them */
    journal_file *spares; /* ascending ids */
    journal_file *retired;
    journal_manifest manifest;    /* of this part's thread, once that runs */
    uint64_t next_id;
    uint64_t checkpoint; /* groups up to this one are in entry logs */
    int error;           /* of the thread's last attempt; 0 when it went well */
    int first_wanted;    /* there is no file yet: a small one will do */
    int waiting;         /* the journal thread waits for a spare */
    int closing;         /* the journal need not wait for a disk that is full */
    int saving;          /* space is short: no spare beyond SPARES_WANTED is stored */
    int stopping;
    int running;
    _Atomic int starved;   /* the journal waits and the preparation fails */
    _Atomic int trouble;   /* error, for other threads */
    _Atomic int half_full; /* the file that the journal writes to */
} journal_files;

/* Formats and parses names. journal_file_parse returns 1 and *id, or 0. */
void journal_file_name(char name[JOURNAL_NAME_BYTES], uint64_t id);
int journal_file_parse(const char *name, uint64_t *id);

/* What the first block of a file says. */
typedef struct journal_header {
    uint64_t id, bytes;
    uint32_t version;
} journal_header;

/* 1 and *out when the block is intact (of whatever version), or 0. */
int journal_header_decode(const uint8_t *block, journal_header *out);

/* Sets up the state, before any file is adopted. */
void journal_files_open(journal_files *files, const disk_calls *disk, events *log,
                        int directory_fd, int event_fd, uint64_t full_bytes);

enum journal_use {
    JOURNAL_USELESS, /* to be removed: a crash left it, or nothing can be written to it */
    JOURNAL_SPARE,   /* without groups */
    JOURNAL_RETIRED  /* with groups up to last_group */
};

/* Hands over a file that replay found. Returns 0 or an error. */
int journal_files_adopt(journal_files *files, uint64_t id, uint64_t bytes, enum journal_use use,
                        uint64_t last_group);

/* Makes a small first file when there is no spare, starts the thread. When there is no space for
 * that file the thread goes on trying. Returns 0 or an error. */
int journal_files_start(journal_files *files);

/* While `on`, spares beyond the one that the journal needs next are removed. Returns 1 when retired
 * files wait for a checkpoint: a flush would free their space. */
int journal_files_save_space(journal_files *files, int on);

/* From now on journal_files_take gives up when a preparation fails. */
void journal_files_hurry(journal_files *files);

/* Stops the thread and frees everything. */
void journal_files_close(journal_files *files);

/* Takes the next file of at least group_bytes of room for groups, waiting for its preparation.
 * Returns 0 and *out, or, when the storage closes and none can be had, why not (-ECANCELED: nothing
 * went wrong) and NULL. Called by the journal thread. */
int journal_files_take(journal_files *files, uint64_t group_bytes, journal_file **out);

/* So many bytes of the journal's file are written. Called by the journal thread. */
static inline void journal_files_filled(journal_files *files, const journal_file *file,
                                        uint64_t bytes) {
    if (bytes > file->bytes / 2)
        atomic_store_explicit(&files->half_full, 1, memory_order_relaxed);
}

/* The journal has left this file, whose last group is file->last_group, synced. */
void journal_files_retire(journal_files *files, journal_file *file);

/* Groups up to this one are in synced entry logs. Any thread. */
void journal_files_checkpoint(journal_files *files, uint64_t group);

#endif
