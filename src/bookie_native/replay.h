/*
 * replay.h - reading the journal back at start.
 *
 * Files are read in the order of their ids, straight into segments, and their records are handed to
 * the sink where they lie. Groups at or below the checkpoint are passed over. Each group names the
 * one before it, so that a missing or unreadable group is noticed. Torn is not corrupt:
 *
 *   - Bad bytes are the torn tail of a write that was never acknowledged when no group of a later
 *     write follows. The valid records before them are kept, the rest is cut, valid or not, and
 *     that is only information: an entry is never kept without those that were added before it.
 *     It cuts nothing of a later session. Of a session without syncs what is found behind is kept:
 *     what is behind bad bytes may have been acknowledged, and nothing tells.
 *   - Bad bytes that a group of a later write of the same session (all groups between one start and
 *     the next) follows had once been synced; so had those that a later start found intact. That
 *     is damage: an error
 *     that names the file, the offset and the entry where it can; all other records are salvaged,
 *     also those of a group whose header is unreadable, by looking on at every multiple of 8.
 *
 * A disk that cannot read is neither. Each call that fails is tried again for a while
 * (disk_patience.h), and then the replay fails with a sentence: to go on would make an older state
 * the newest. The same goes for a file that the journal's manifest lists and that is not there.
 * Only who accepts the loss gets unreadable blocks as damage and a missing file as none. Replay
 * changes nothing on the disk.
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
    /* One record; its payload lies in s (NULL for a damaged one, of which only the identity is
     * known). Keeps a hold of its own on s. Returns 0 or an error, which ends the replay. */
    int (*record)(void *arg, segment *s, const record *r, int intact);
} replay_sink;

typedef struct replay_options {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    journal_files *files; /* adopts what was found */
    uint64_t checkpoint;
    int unsure;           /* the checkpoint may be too low: do not report groups before the first */
    int accept_loss;      /* go on where a file is missing or cannot be read */
} replay_options;

typedef struct replay_result {
    uint64_t last_group; /* the highest sequence found, or the checkpoint */
    uint64_t records;
    int intact;          /* nothing was bad */
} replay_result;

/* Returns 0 or an error, for which error holds a sentence. */
int replay_journal(const replay_options *options, const replay_sink *sink, replay_result *result,
                   char *error, size_t error_bytes);

#endif
