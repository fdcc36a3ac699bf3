/*
 * replay.h - reading the journal at start.
 *
 * Files are read in the order of their ids, directly into segments. Their records are passed to the
 * sink in place. Groups up to the checkpoint are skipped. Each group names the one before it, so
 * that a missing or unreadable group is noticed. Torn writes and damage are distinguished:
 *
 *   - Invalid bytes are the torn tail of an unacknowledged write when no group of a later write
 *     follows. The valid records before them are kept. The records after them are cut, valid or
 *     not, because an entry must never be kept without those added before it. This is reported as
 *     information. The cut does not reach into a later session. In a session without syncs,
 *     records after invalid bytes are kept: they may have been acknowledged.
 *   - Invalid bytes are damage when a group of a later write of the same session follows (a session
 *     is all groups between two starts), or when a later start found them intact: they had been
 *     synced. Damage is an error that names the file, the offset and, if possible, the entry. All
 *     other records are salvaged, also those of a group with an unreadable header, by trying every
 *     multiple of 8.
 *
 * A disk error is neither. Each failing call is retried for a while (disk_retry.h); then the
 * replay fails with a message, because continuing would make an older state the current one. A
 * file that the journal's manifest lists and that does not exist fails the replay too. Only with
 * accept_loss are unreadable blocks treated as damage and missing files ignored. Replay does not
 * change the disk.
 */
#ifndef PYXBROKER_REPLAY_H
#define PYXBROKER_REPLAY_H

#include "events.h"
#include "journal.h"
#include "journal_files.h"
#include "segment.h"

typedef struct replay_sink {
    void *arg;
    segment_pool *pool;
    /* Takes one record; its payload lies in s (NULL for a damaged one, of which only the identity
     * is known). Takes its own hold on s. Returns 0 or an error, which ends the replay. */
    int (*record)(void *arg, segment *s, const record *r, int intact);
} replay_sink;

typedef struct replay_options {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    journal_files *files; /* adopts the files found */
    uint64_t checkpoint;
    int unsure;           /* the checkpoint may be too low: do not report groups missing before the
                           * first */
    int accept_loss;      /* continue when a file is missing or cannot be read */
} replay_options;

typedef struct replay_result {
    uint64_t last_group; /* the highest sequence found, or the checkpoint */
    uint64_t records;
    int intact;          /* no damage was found */
} replay_result;

/* Returns 0, or an error and a message in `error`. */
int replay_journal(const replay_options *options, const replay_sink *sink, replay_result *result,
                   char *error, size_t error_bytes);

#endif
