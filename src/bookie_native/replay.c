/* replay.c - reading journal files at start: files, groups, records. */
#define _GNU_SOURCE
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "disk_retry.h"
#include "replay_window.h"

enum {
    LOOK_AHEAD_CLEAN_BYTES = 4 << 20,  /* after a zero block: the file was probably not written */
    LOOK_AHEAD_BYTES = 64 << 20,       /* after other invalid blocks */
    SALVAGE_BYTES_MAX = 16 << 20,      /* of groups with unreadable headers */
    SALVAGE_SEQUENCES_MAX = 64,
    SUSPECTS_MAX = 4096,
    SUSPECTS_REPORTED_MAX = 32,
    SESSIONS_MAX = 64
};

typedef struct found_file {
    uint64_t id, bytes;
    int fd;
    int has_first;      /* first is the valid header of the file's first group */
    int header_damaged;
    int half_recycled;  /* the recycling was interrupted: nothing in it is needed */
    group_header first;
} found_file;

/* A bad place. Only at the end of the replay is it known whether it is torn or damaged. */
typedef struct suspect {
    uint64_t file_id, sequence, offset;
    uint64_t salt;                 /* of its session; 0: certainly damage */
    uint64_t lost_bytes;           /* 0: a record whose identity is known */
    int64_t ledger_id, entry_id;
    uint8_t type;
    uint8_t unsynced; /* its session does not sync: acknowledgements cannot be inferred */
} suspect;

/* All groups between two starts, which share a salt. */
typedef struct session {
    uint64_t salt;
    uint64_t synced_through; /* its groups up to this one are known to be synced */
} session;

/* A record after a bad place, deferred until it is known whether the place is torn; or (segment
 * NULL) the bad place itself: the sequence of its group and the salt of its session. */
typedef struct deferred {
    segment *segment; /* held */
    record found;
    uint64_t sequence, salt;
} deferred;

typedef struct replay {
    const replay_options *options;
    const replay_sink *sink;
    replay_result *result;
    found_file *files;
    size_t count, capacity;
    uint64_t last;           /* sequence of the last group found; initially the checkpoint */
    uint64_t salt;           /* of that group's session, or of the one being read */
    int syncs;               /* 1 when that session syncs each write before the next */
    uint64_t intact_through; /* groups up to this one were found intact by a later start */
    session sessions[SESSIONS_MAX];
    size_t session_count;
    suspect *suspects;
    size_t suspect_count, suspects_dropped;
    deferred *deferred;        /* in journal order; the first one is a bad place */
    size_t deferred_count, deferred_capacity;
    int error;               /* of the sink or the disk */
    uint64_t error_at;       /* offset in the file being read */
} replay;

static void replay_defer(replay *r, const deferred *one) {
    if (r->deferred_count == r->deferred_capacity) {
        size_t capacity = r->deferred_capacity == 0 ? 64 : 2 * r->deferred_capacity;
        deferred *grown = realloc(r->deferred, capacity * sizeof *grown);
        if (grown == NULL) {
            r->error = -ENOMEM;
            return;
        }
        r->deferred = grown;
        r->deferred_capacity = capacity;
    }
    if (one->segment != NULL)
        pin_hold(&one->segment->pin, 1);
    r->deferred[r->deferred_count++] = *one;
}

/* Defers what follows a bad place until it is known whether the place is torn (salt 0: it is not).
 * In a session without syncs this never becomes known; what follows may have been acknowledged, so
 * it is kept. In a session with syncs the next write decides, so little is deferred. */
static void replay_defer_after(replay *r, uint64_t sequence, uint64_t salt) {
    deferred place = {.sequence = sequence, .salt = salt};
    if (salt != 0 && r->syncs && r->error == 0)
        replay_defer(r, &place);
}

static void replay_add_suspect(replay *r, const suspect *s) {
    if (r->suspects == NULL)
        r->suspects = malloc(SUSPECTS_MAX * sizeof *r->suspects);
    if (r->suspects == NULL || r->suspect_count == SUSPECTS_MAX)
        r->suspects_dropped++;
    else {
        r->suspects[r->suspect_count] = *s;
        r->suspects[r->suspect_count++].unsynced = !r->syncs;
    }
}

static void replay_suspect(replay *r, const suspect *s) {
    replay_add_suspect(r, s);
    replay_defer_after(r, s->sequence, s->salt);
}

static void replay_accept(replay *r, replay_window *w, const record *found) {
    deferred one = {.segment = w->segment, .found = *found};
    r->result->records++;
    if (r->error != 0)
        return;
    if (r->deferred_count > 0)
        replay_defer(r, &one);
    else
        r->error = r->sink->record(r->sink->arg, w->segment, found, 1);
}

/* Corrects one flipped bit of the record header at `at`. Torn writes do not look like that. */
static int replay_repair_header(replay *r, const replay_window *w, record_scan *scan, uint8_t *data,
                                size_t at, uint64_t offset) {
    if (!record_repair_header(data + at, scan->bytes - at, scan->seed))
        return 0;
    events_add(r->options->events, EVENT_WARNING,
               "journal file %016" PRIx64 ".journal, offset %" PRIu64
               ": one bit of a record's header was damaged and was corrected",
               w->file_id, offset + at);
    r->result->intact = 0;
    scan->at = at;
    return 1;
}

/* Passes on the records of the bytes at data, which are at offset in the file. If `known`, the
 * bytes must be records, so others are suspect. Returns how many records were good. */
static uint64_t replay_records(replay *r, replay_window *w, uint8_t *data, size_t bytes,
                               uint64_t offset, uint64_t sequence, uint64_t salt, int known) {
    record_scan scan = {.data = data, .bytes = bytes, .seed = record_seed(sequence, salt)};
    record found;
    uint64_t good = 0;
    for (;;) {
        size_t at = scan.at;
        enum record_found what = record_scan_next(&scan, &found);
        if (what == RECORD_NONE)
            return good;
        /* The header of a salvaged group, and the bytes after its records. */
        int outside = !known && (scan.at <= GROUP_HEADER_BYTES || scan.at == bytes);
        suspect s = {
            .file_id = w->file_id, .sequence = sequence, .salt = salt, .offset = offset + at};
        if (what == RECORD_GOOD) {
            replay_accept(r, w, &found);
            good++;
        } else if (what == RECORD_DAMAGED) {
            s.ledger_id = found.ledger_id;
            s.entry_id = found.entry_id;
            s.type = found.type;
            /* After the last write no later group proves that it was synced. */
            if (record_payload_has_one_wrong_bit(&found))
                s.salt = 0;
            replay_suspect(r, &s);
        } else if (!outside && !replay_repair_header(r, w, &scan, data, at, offset)) {
            s.lost_bytes = scan.skipped_bytes;
            replay_suspect(r, &s);
        }
    }
}

/* Searches from..to for the records of groups with unreadable headers. Returns how many were
 * good. */
static uint64_t replay_salvage(replay *r, replay_window *w, uint64_t from, uint64_t to,
                           uint64_t last_sequence, uint64_t salt) {
    uint64_t first = r->last + 1, all = 0;
    if (last_sequence - first >= SALVAGE_SEQUENCES_MAX)
        first = last_sequence - SALVAGE_SEQUENCES_MAX + 1;
    if (to - from > SALVAGE_BYTES_MAX)
        to = from + SALVAGE_BYTES_MAX;
    uint8_t *data = replay_window_get(w, from, to - from);
    if (data == NULL)
        return 0;
    for (uint64_t sequence = first; sequence <= last_sequence; sequence++) {
        uint64_t good = replay_records(r, w, data, to - from, from, sequence, salt, 0);
        all += good;
        if (good > 0)
            events_add(r->options->events, EVENT_WARNING,
                       "journal file %016" PRIx64 ".journal: the header of group %" PRIu64
                       " near offset %" PRIu64 " is unreadable; its intact records were salvaged",
                       w->file_id, sequence, from);
    }
    return all;
}

/* Notes groups that are missing before h, and salvages their records. */
static void replay_gap(replay *r, replay_window *w, const group_header *h, uint64_t bad_from,
                       uint64_t at) {
    int first_ever = r->last == r->options->checkpoint && r->options->unsure;
    if (h->previous <= r->last || first_ever)
        return;
    /* The groups of one write may reach the disk in any order, but earlier writes were synced. No
     * write precedes the first one of a session. */
    int follows = h->write_sequence == r->last + 1 ||
                  h->write_sequence == r->last + GROUP_SEQUENCE_STEP;
    int damage = !follows && (h->flags & GROUP_SYNCED) != 0;
    suspect s = {.file_id = w->file_id,
                 .sequence = h->previous,
                 .salt = damage ? 0 : h->salt,
                 .offset = bad_from < at ? bad_from : at,
                 .lost_bytes = bad_from < at ? at - bad_from : 1};
    replay_add_suspect(r, &s);
    /* A sector lost with a header also loses records, so a bad header alone is not torn. */
    if (bad_from >= at || replay_salvage(r, w, bad_from, at, h->previous, h->salt) == 0)
        replay_defer_after(r, s.sequence, s.salt);
}

/* Notes what a group header proves about earlier groups. GROUP_SYNCED: the earlier writes of the
 * same session were synced. GROUP_AFTER_INTACT: the session found the groups of earlier sessions
 * intact when it began. */
static void replay_note_evidence(replay *r, const group_header *h) {
    if (r->session_count == 0 || r->sessions[r->session_count - 1].salt != h->salt) {
        if (r->session_count == SESSIONS_MAX) {
            r->session_count--;
            memmove(r->sessions, r->sessions + 1, r->session_count * sizeof *r->sessions);
        }
        r->sessions[r->session_count++] = (session){.salt = h->salt};
        /* The predecessor of a session's first group belongs to an earlier session. If the first
         * groups of a session are unreadable, only the groups read before are known to be. */
        int is_first = h->sequence - h->previous >= GROUP_SEQUENCE_STEP;
        uint64_t earlier = is_first || h->previous < r->last ? h->previous : r->last;
        if ((h->flags & GROUP_AFTER_INTACT) != 0 && earlier > r->intact_through)
            r->intact_through = earlier;
    }
    session *current = &r->sessions[r->session_count - 1];
    if ((h->flags & GROUP_SYNCED) != 0 && h->write_sequence > 0)
        current->synced_through = h->write_sequence - 1;
}

static int replay_is_damage(const replay *r, const suspect *s) {
    if (s->salt == 0 || s->sequence <= r->intact_through)
        return 1;
    for (size_t i = 0; i < r->session_count; i++)
        if (r->sessions[i].salt == s->salt)
            return s->sequence <= r->sessions[i].synced_through;
    return 0;
}

/* Resolves deferred records. Those after a place that is damage are passed on. Those after a torn
 * place are cut: none of them was acknowledged, and after a gap they would pass for everything that
 * was sent. salt is that of the session that continues, 0 at the end. */
static void replay_resolve_deferred(replay *r, uint64_t salt) {
    size_t at = 0, kept;
    for (; at < r->deferred_count; at++) {
        deferred *one = &r->deferred[at];
        if (one->segment != NULL) {
            if (r->error == 0)
                r->error = r->sink->record(r->sink->arg, one->segment, &one->found, 1);
            pin_drop(&one->segment->pin);
            continue;
        }
        suspect place = {.sequence = one->sequence, .salt = one->salt};
        if (!replay_is_damage(r, &place))
            break;
    }
    kept = r->deferred_count - at;
    if (kept > 0 && r->deferred[at].salt == salt) {
        if (at > 0)
            memmove(r->deferred, r->deferred + at, kept * sizeof *r->deferred);
    } else {
        for (; at < r->deferred_count; at++)
            if (r->deferred[at].segment != NULL) {
                pin_drop(&r->deferred[at].segment->pin);
                r->result->records--;
            }
        kept = 0;
    }
    r->deferred_count = kept;
}

/* Reads the group at offset `at`, whose header is valid. */
static void replay_group(replay *r, replay_window *w, const group_header *h, uint64_t at) {
    uint8_t *group = replay_window_get(w, at, h->length);
    if (group != NULL)
        replay_records(r, w, group + GROUP_HEADER_BYTES, h->length - GROUP_HEADER_BYTES,
                       at + GROUP_HEADER_BYTES, h->sequence, h->salt, 1);
}

/* Returns the offset up to which to search for a valid group when none exists at `at`. */
static uint64_t replay_limit(const replay *r, const found_file *file, const uint8_t *block,
                             uint64_t at, uint64_t next_previous) {
    if (next_previous > r->last)
        return file->bytes; /* a later file proves that more groups were here */
    if (next_previous > 0)
        return at;
    uint64_t ahead = all_zero(block, BLOCK_BYTES) ? LOOK_AHEAD_CLEAN_BYTES : LOOK_AHEAD_BYTES;
    return file->bytes - at < ahead ? file->bytes : at + ahead;
}

/* Returns 1 when block starts a group of this file that follows all groups found so far. */
static int replay_is_group(const found_file *file, uint64_t last_in_file, const uint8_t *block,
                           uint64_t at, group_header *h) {
    return group_header_decode(block, h) && h->file_id == file->id &&
           h->sequence > last_in_file && h->length <= file->bytes - at;
}

/* Reads one file. next_previous is the predecessor named by the next file with groups, 0 without
 * such a file. Returns the sequence of the file's last group, 0 when it has none. */
static uint64_t replay_file(replay *r, found_file *file, uint64_t next_previous) {
    replay_window w = {.disk = r->options->disk,
                       .events = r->options->events,
                       .pool = r->sink->pool,
                       .fd = file->fd,
                       .file_id = file->id,
                       .file_bytes = file->bytes,
                       .accept_loss = r->options->accept_loss};
    uint64_t at = BLOCK_BYTES, bad_from = 0, limit = 0, last_in_file = 0;
    while (at + BLOCK_BYTES <= file->bytes && r->error == 0) {
        const uint8_t *block = replay_window_get(&w, at, BLOCK_BYTES);
        group_header h;
        if (block == NULL)
            break;
        if (!replay_is_group(file, last_in_file, block, at, &h)) {
            if (bad_from == 0) {
                bad_from = at;
                limit = replay_limit(r, file, block, at, next_previous);
            }
            at += BLOCK_BYTES;
            if (at >= limit)
                break;
            continue;
        }
        r->salt = h.salt;
        r->syncs = (h.flags & GROUP_SYNCED) != 0;
        if (h.sequence > r->options->checkpoint) {
            /* Deferred records of an earlier session come first: the gap does not precede them. */
            replay_note_evidence(r, &h);
            replay_resolve_deferred(r, h.salt);
            replay_gap(r, &w, &h, bad_from == 0 ? at : bad_from, at);
            replay_group(r, &w, &h, at);
        }
        bad_from = 0;
        last_in_file = h.sequence;
        if (h.sequence > r->last)
            r->last = h.sequence;
        at += round_up(h.length, BLOCK_BYTES);
    }
    if (bad_from != 0 && r->salt != 0 && (next_previous == 0 || next_previous > r->last)) {
        uint64_t end = at < file->bytes ? at : file->bytes;
        uint64_t before = r->result->records;
        uint64_t missing = next_previous == 0 ? r->last + 1 : next_previous;
        replay_salvage(r, &w, bad_from, end, missing, r->salt);
        /* The sequence of a salvaged group must not be reused. */
        if (r->result->records > before)
            last_in_file = r->last = missing;
    }
    if (r->error == 0 && w.error < 0) {
        r->error = w.error;
        r->error_at = w.error_at;
    }
    replay_window_close(&w);
    return last_in_file;
}

/* Returns the description of a bad place that may be torn. */
static const char *torn_description(const suspect *s) {
    if (s->unsynced)
        return s->lost_bytes == 0 ? "unreadable; it was written without syncs, and may have been "
                                    "acknowledged"
                                  : "records are unreadable that were written without syncs, and "
                                    "may have been acknowledged";
    return s->lost_bytes == 0 ? "the torn end of an unacknowledged write and was cut"
                              : "the torn end of an unacknowledged write was cut";
}

/* Reports bad places, now that the synced groups are known; passes on damaged entries as such. */
static void replay_report(replay *r) {
    events *events = r->options->events;
    size_t reported = 0;
    for (size_t i = 0; i < r->suspect_count && r->error == 0; i++) {
        const suspect *s = &r->suspects[i];
        int damage = replay_is_damage(r, s);
        r->result->intact = 0;
        enum event_severity severity = damage        ? EVENT_ERROR
                                       : s->unsynced ? EVENT_WARNING
                                                     : EVENT_INFO;
        if (damage && s->lost_bytes == 0) {
            record lost = {.type = s->type, .ledger_id = s->ledger_id, .entry_id = s->entry_id};
            r->error = r->sink->record(r->sink->arg, NULL, &lost, 0);
        }
        if (++reported > SUSPECTS_REPORTED_MAX)
            continue;
        if (s->lost_bytes == 0)
            events_add(events, severity,
                       "journal file %016" PRIx64 ".journal, offset %" PRIu64 ": entry %" PRId64
                       " of ledger %" PRId64 " is %s",
                       s->file_id, s->offset, s->entry_id, s->ledger_id,
                       damage ? "damaged and is not served" : torn_description(s));
        else
            events_add(events, severity,
                       "journal file %016" PRIx64 ".journal, offset %" PRIu64 ": %s",
                       s->file_id, s->offset,
                       damage ? "records that had been synced are unreadable; the entries in them "
                                "are lost"
                              : torn_description(s));
    }
    if (reported > SUSPECTS_REPORTED_MAX || r->suspects_dropped > 0)
        events_add(events, EVENT_ERROR, "the journal has %zu more unreadable places",
                   reported -
                       (reported > SUSPECTS_REPORTED_MAX ? SUSPECTS_REPORTED_MAX : reported) +
                       r->suspects_dropped);
}

static int replay_name(void *arg, const char *name) {
    replay *r = arg;
    uint64_t id;
    if (!journal_file_parse(name, &id))
        return 0;
    if (r->count == r->capacity) {
        size_t capacity = r->capacity == 0 ? 16 : r->capacity * 2;
        found_file *files = realloc(r->files, capacity * sizeof *files);
        if (files == NULL)
            return -ENOMEM;
        r->files = files;
        r->capacity = capacity;
    }
    r->files[r->count++] = (found_file){.id = id, .fd = -1};
    return 0;
}

static int by_file_id(const void *a, const void *b) {
    uint64_t first = ((const found_file *)a)->id, second = ((const found_file *)b)->id;
    return first < second ? -1 : first > second;
}

/* Evaluates the first two blocks of an opened file, of which `bytes` were read. */
static void replay_check_file(replay *r, found_file *file, const uint8_t *blocks, ssize_t bytes,
                              uint64_t size, journal_header *header) {
    int valid = bytes >= BLOCK_BYTES && journal_header_decode(blocks, header);
    file->bytes = round_down(size, BLOCK_BYTES);
    file->has_first = bytes == 2 * BLOCK_BYTES &&
                      group_header_decode(blocks + BLOCK_BYTES, &file->first) &&
                      file->first.file_id == file->id;
    file->half_recycled = valid && header->id != file->id;
    file->header_damaged = !valid || header->bytes != size;
    if (file->header_damaged && !file->half_recycled)
        events_add(r->options->events, EVENT_ERROR,
                   "journal file %016" PRIx64 ".journal has %s; its groups are read nevertheless",
                   file->id, valid ? "a wrong size" : "a damaged first block");
}

/* Opens a file and reads its first two blocks. Returns 0, an error, or -EPROTO and the version when
 * a newer one wrote it. */
static int replay_open_file(replay *r, found_file *file, uint32_t *version) {
    const disk_calls *disk = r->options->disk;
    char name[JOURNAL_NAME_BYTES];
    journal_file_name(name, file->id);
    file->fd = disk_open_direct_retrying(disk, r->options->directory_fd, name, O_RDONLY);
    if (file->fd < 0)
        return file->fd;
    int64_t size = disk_file_bytes_retrying(disk, file->fd);
    uint8_t *blocks = aligned_alloc(BLOCK_BYTES, 2 * BLOCK_BYTES);
    if (size < 0 || blocks == NULL) {
        free(blocks);
        return size < 0 ? (int)size : -ENOMEM;
    }
    memset(blocks, 0, 2 * BLOCK_BYTES);
    ssize_t got = disk_read_retrying(disk, file->fd, blocks, 2 * BLOCK_BYTES, 0);
    journal_header header = {.version = JOURNAL_VERSION};
    if (got >= 0 || r->options->accept_loss)
        replay_check_file(r, file, blocks, got, (uint64_t)size, &header);
    free(blocks);
    *version = header.version;
    if (got < 0 && !r->options->accept_loss)
        return (int)got;
    return header.version > JOURNAL_VERSION ? -EPROTO : 0;
}

/* Returns the predecessor named by the first later file with groups; 0 without such a file. */
static uint64_t replay_next_previous(const replay *r, size_t file) {
    for (size_t i = file + 1; i < r->count; i++)
        if (!r->files[i].half_recycled && r->files[i].has_first)
            return r->files[i].first.previous;
    return 0;
}

/* Reads or skips one opened file and passes it to journal_files. Returns 0 or an error. */
static int replay_one(replay *r, size_t number) {
    found_file *file = &r->files[number];
    journal_files *files = r->options->files;
    if (file->half_recycled)
        return journal_files_adopt(files, file->id, file->bytes, JOURNAL_UNUSABLE, 0);
    uint64_t next_previous = replay_next_previous(r, number);
    /* All its groups are at or before the predecessor that the next file names. */
    int covered = next_previous > 0 && next_previous <= r->options->checkpoint;
    uint64_t last = covered ? r->options->checkpoint : replay_file(r, file, next_previous);
    const disk_calls *disk = r->options->disk;
    disk_retry retry = {0};
    /* After a kill without a power cut, the data read may never have been synced. From now on it
     * counts as durable, so it must be synced. */
    if (r->error == 0 && last > r->options->checkpoint)
        do
            r->error = disk->fdatasync(disk->ctx, file->fd);
        while (disk_retry_again(&retry, disk, r->error));
    if (r->error < 0)
        return r->error;
    enum journal_use use = last > 0 ? JOURNAL_RETIRED : JOURNAL_SPARE;
    /* Spares are used in the order of their ids, so one before a used file is unusable. */
    if (last == 0 && (file->header_damaged || next_previous > 0))
        use = JOURNAL_UNUSABLE;
    disk->close(disk->ctx, file->fd);
    file->fd = -1;
    return journal_files_adopt(files, file->id, file->bytes, use, last);
}

/* Lists the journal files. Returns 0, or an error and a message. */
static int replay_list(replay *r, char *error, size_t error_bytes) {
    const disk_calls *disk = r->options->disk;
    disk_retry retry = {0};
    int status;
    do {
        r->count = 0;
        status = disk->list(disk->ctx, r->options->directory_fd, replay_name, r);
    } while (disk_retry_again(&retry, disk, status));
    if (status < 0)
        snprintf(error, error_bytes, "the journal directory cannot be read: %s", strerror(-status));
    if (r->count > 0)
        qsort(r->files, r->count, sizeof *r->files, by_file_id);
    return status;
}

/* Looks for the files of the manifest. Returns 0, or an error and a message. */
static int replay_compare(replay *r, char *error, size_t error_bytes) {
    journal_manifest *listed = &r->options->files->manifest;
    for (size_t i = listed->count; i > 0; i--) {
        found_file wanted = {.id = listed->ids[i - 1]};
        if (r->count > 0 &&
            bsearch(&wanted, r->files, r->count, sizeof *r->files, by_file_id) != NULL)
            continue;
        if (!r->options->accept_loss) {
            snprintf(error, error_bytes,
                     "journal file %016" PRIx64 ".journal is missing: acknowledged messages that "
                     "are not in an entry log yet may be lost; restore it, or start with "
                     "--accept-loss", wanted.id);
            return -ENOENT;
        }
        events_add(r->options->events, EVENT_ERROR,
                   "journal file %016" PRIx64 ".journal is missing: acknowledged messages that "
                   "were not in an entry log yet may be lost (--accept-loss)", wanted.id);
        journal_manifest_remove(listed, wanted.id);
    }
    return 0;
}

/* Opens and reads all files. Returns 0, or an error and a message. */
static int replay_files(replay *r, char *error, size_t error_bytes) {
    int status = 0;
    uint64_t reading = 0;
    uint32_t version = 0;
    for (size_t i = 0; i < r->count && status == 0; i++) {
        reading = r->files[i].id;
        status = replay_open_file(r, &r->files[i], &version);
    }
    if (status == -EPROTO) {
        snprintf(error, error_bytes,
                 "journal file %016" PRIx64 ".journal was written by a newer pyxbroker (format "
                 "%" PRIu32 "; this one reads up to %d)", reading, version, JOURNAL_VERSION);
        return status;
    }
    for (size_t i = 0; i < r->count && status == 0; i++) {
        reading = r->files[i].id;
        status = replay_one(r, i);
    }
    if (status < 0)
        snprintf(error, error_bytes,
                 "journal file %016" PRIx64 ".journal cannot be read (offset %" PRIu64 ": %s); "
                 "nothing was changed; %s", reading, r->error_at, strerror(-status),
                 status == -EIO ? "restore it, or start with --accept-loss to lose its content"
                                : "start again when the cause is fixed");
    return status;
}

int replay_journal(const replay_options *options, const replay_sink *sink, replay_result *result,
                   char *error, size_t error_bytes) {
    replay r = {.options = options, .sink = sink, .result = result, .last = options->checkpoint};
    *result = (replay_result){.intact = 1};
    int status = journal_manifest_read(&options->files->manifest, options->events, error,
                               error_bytes);
    if (status >= 0)
        status = replay_list(&r, error, error_bytes);
    if (status == 0)
        status = replay_compare(&r, error, error_bytes);
    if (status == 0)
        status = replay_files(&r, error, error_bytes);
    replay_resolve_deferred(&r, 0);
    if (status == 0) {
        replay_report(&r);
        status = r.error;
    }
    for (size_t i = 0; i < r.count; i++)
        if (r.files[i].fd >= 0)
            options->disk->close(options->disk->ctx, r.files[i].fd);
    free(r.files);
    free(r.suspects);
    free(r.deferred);
    result->last_group = r.last;
    return status;
}
