/* journal_manifest.c - reading and writing the list of journal files. */
#include "journal_manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "disk_retry.h"

enum {
    COPIES = 4,
    STATE_COPIES = 2,
    COPY_HEADER_BYTES = 64,
    COPY_CRC_START = 12,
    ID_BYTES = 8
};

#define JOURNAL_MANIFEST_BYTES_MAX (1u << 30)

static const char TEMPORARY_NAME[] = JOURNAL_MANIFEST_NAME ".tmp";
static const char JOURNAL_MANIFEST_MAGIC[8] = {'P', 'Y', 'X', 'M', 'N', 'F', 'S', 'T'};

void journal_manifest_open(journal_manifest *m, const disk_calls *disk, int directory_fd) {
    *m = (journal_manifest){.disk = disk, .directory_fd = directory_fd, .changed = 1};
}

void journal_manifest_close(journal_manifest *m) {
    free(m->ids);
    m->ids = NULL;
    m->count = m->capacity = 0;
}

/* Returns the position in the list of the id, or of the first one after it. */
static size_t journal_manifest_place(const journal_manifest *m, uint64_t id) {
    size_t low = 0, high = m->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (m->ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int journal_manifest_has(const journal_manifest *m, uint64_t id) {
    size_t place = journal_manifest_place(m, id);
    return place < m->count && m->ids[place] == id;
}

/* Reserves room for `count` ids. Returns 0 or -ENOMEM. */
static int journal_manifest_reserve(journal_manifest *m, size_t count) {
    if (count <= m->capacity)
        return 0;
    size_t capacity = m->capacity == 0 ? 64 : m->capacity * 2;
    if (capacity < count)
        capacity = count;
    uint64_t *ids = realloc(m->ids, capacity * sizeof *ids);
    if (ids == NULL)
        return -ENOMEM;
    m->ids = ids;
    m->capacity = capacity;
    return 0;
}

int journal_manifest_add(journal_manifest *m, uint64_t id) {
    size_t place = journal_manifest_place(m, id);
    if (place < m->count && m->ids[place] == id)
        return 0;
    if (journal_manifest_reserve(m, m->count + 1) < 0)
        return -ENOMEM;
    memmove(m->ids + place + 1, m->ids + place, (m->count - place) * sizeof *m->ids);
    m->ids[place] = id;
    m->count++;
    m->changed = 1;
    return 0;
}

void journal_manifest_remove(journal_manifest *m, uint64_t id) {
    size_t place = journal_manifest_place(m, id);
    if (place == m->count || m->ids[place] != id)
        return;
    m->count--;
    memmove(m->ids + place, m->ids + place + 1, (m->count - place) * sizeof *m->ids);
    m->changed = 1;
}

static uint32_t copy_crc(const uint8_t *copy, uint64_t count) {
    return crc32c(0, copy + COPY_CRC_START, COPY_HEADER_BYTES - COPY_CRC_START + count * ID_BYTES);
}

/* Returns 1 when the copy is intact, of any version. */
static int copy_intact(const uint8_t *copy, uint64_t bytes) {
    uint64_t count = load_le32(copy + 20);
    return memcmp(copy, JOURNAL_MANIFEST_MAGIC, sizeof JOURNAL_MANIFEST_MAGIC) == 0 &&
           count <= (bytes - COPY_HEADER_BYTES) / ID_BYTES &&
           copy_crc(copy, count) == load_le32(copy + 8);
}

/* Takes the list from a copy. Returns 0 or -ENOMEM. */
static int journal_manifest_load_copy(journal_manifest *m, const uint8_t *copy) {
    size_t count = load_le32(copy + 20);
    m->count = 0;
    m->sequence = load_le64(copy + 24);
    for (size_t i = 0; i < count; i++)
        if (journal_manifest_add(m, load_le64(copy + COPY_HEADER_BYTES + i * ID_BYTES)) < 0)
            return -ENOMEM;
    return 0;
}

/* Takes the newest intact copy. Returns 1, 0 when none is intact, -ENOMEM, or -EPROTO and the
 * version when a newer one wrote it. */
static int journal_manifest_decode(journal_manifest *m, const uint8_t *copies, uint32_t *version) {
    const uint8_t *best = NULL;
    int intact[COPIES];
    for (int i = 0; i < COPIES; i++) {
        const uint8_t *copy = copies + (uint64_t)i * m->copy_bytes;
        intact[i] = copy_intact(copy, m->copy_bytes);
        if (!intact[i])
            continue;
        if ((*version = load_le32(copy + 12)) > JOURNAL_MANIFEST_VERSION)
            return -EPROTO;
        if (best == NULL || load_le64(copy + 24) > load_le64(best + 24)) {
            best = copy;
            m->state = i / STATE_COPIES;
        }
    }
    if (best == NULL)
        return 0;
    int error = journal_manifest_load_copy(m, best);
    /* If one of the two copies is torn or damaged, both are rewritten. */
    m->changed = !intact[m->state * STATE_COPIES] || !intact[m->state * STATE_COPIES + 1];
    return error < 0 ? error : 1;
}

/* Reads the whole file into new memory. Returns its size or an error. */
static int64_t journal_manifest_load(journal_manifest *m, uint8_t **out) {
    const disk_calls *disk = m->disk;
    int fd = disk_open_retrying(disk, m->directory_fd, JOURNAL_MANIFEST_NAME, O_RDONLY);
    if (fd < 0)
        return fd;
    int64_t bytes = disk_file_bytes_retrying(disk, fd);
    if (bytes > JOURNAL_MANIFEST_BYTES_MAX)
        bytes = JOURNAL_MANIFEST_BYTES_MAX;
    *out = NULL;
    if (bytes >= 0 && (*out = malloc((size_t)bytes + 1)) == NULL)
        bytes = -ENOMEM;
    if (bytes > 0)
        bytes = disk_read_retrying(disk, fd, *out, (size_t)bytes, 0);
    disk->close(disk->ctx, fd);
    if (bytes < 0)
        free(*out);
    return bytes;
}

int journal_manifest_read(journal_manifest *m, events *events, char *error, size_t error_bytes) {
    uint8_t *copies;
    int64_t bytes = journal_manifest_load(m, &copies);
    if (bytes == -ENOENT)
        return 0;
    if (bytes < 0) {
        snprintf(error, error_bytes, "%s cannot be read: %s", JOURNAL_MANIFEST_NAME,
                 strerror((int)-bytes));
        return (int)bytes;
    }
    uint32_t version = 0;
    int found = 0;
    m->copy_bytes = (uint64_t)bytes / COPIES;
    if (m->copy_bytes > 0 && m->copy_bytes % BLOCK_BYTES == 0)
        found = journal_manifest_decode(m, copies, &version);
    free(copies);
    if (found == -EPROTO)
        snprintf(error, error_bytes,
                 "%s was written by a newer pyxbroker (format %" PRIu32
                 "; this one reads up to %d)",
                 JOURNAL_MANIFEST_NAME, version, JOURNAL_MANIFEST_VERSION);
    else if (found < 0)
        snprintf(error, error_bytes, "out of memory");
    if (found == 0) {
        events_add(events, EVENT_ERROR,
                   "%s is damaged, so a missing journal file cannot be detected; it is rebuilt "
                   "from the files found",
                   JOURNAL_MANIFEST_NAME);
        m->copy_bytes = 0;
        m->changed = 1;
    }
    return found;
}

static void copy_encode(const journal_manifest *m, uint8_t *copy, uint64_t copy_bytes) {
    memset(copy, 0, copy_bytes);
    memcpy(copy, JOURNAL_MANIFEST_MAGIC, sizeof JOURNAL_MANIFEST_MAGIC);
    store_le32(copy + 12, JOURNAL_MANIFEST_VERSION);
    store_le32(copy + 20, (uint32_t)m->count);
    store_le64(copy + 24, m->sequence);
    for (size_t i = 0; i < m->count; i++)
        store_le64(copy + COPY_HEADER_BYTES + i * ID_BYTES, m->ids[i]);
    store_le32(copy + 8, copy_crc(copy, m->count));
}

/* Writes `count` adjacent copies of the list and syncs them. */
static int journal_manifest_write(const journal_manifest *m, int fd, uint64_t copy_bytes, int count,
                          uint64_t offset) {
    uint8_t *copies = malloc((size_t)count * copy_bytes);
    if (copies == NULL)
        return -ENOMEM;
    copy_encode(m, copies, copy_bytes);
    for (int i = 1; i < count; i++)
        memcpy(copies + (uint64_t)i * copy_bytes, copies, copy_bytes);
    int error = disk_write_all(m->disk, fd, copies, (size_t)count * copy_bytes, (int64_t)offset);
    free(copies);
    return error < 0 ? error : m->disk->fdatasync(m->disk->ctx, fd);
}

/* Creates a file with room for twice as many ids and four identical copies. */
static int journal_manifest_create(journal_manifest *m) {
    const disk_calls *disk = m->disk;
    uint64_t copy_bytes = round_up(COPY_HEADER_BYTES + m->count * 2 * ID_BYTES, BLOCK_BYTES);
    int fd = disk->open(disk->ctx, m->directory_fd, TEMPORARY_NAME, O_RDWR | O_CREAT | O_TRUNC);
    if (fd < 0)
        return fd;
    int error = journal_manifest_write(m, fd, copy_bytes, COPIES, 0);
    disk->close(disk->ctx, fd);
    if (error == 0)
        error = disk->rename(disk->ctx, m->directory_fd, TEMPORARY_NAME, JOURNAL_MANIFEST_NAME);
    if (error == 0) {
        /* The name now refers to the new file, durably or not. */
        m->copy_bytes = copy_bytes;
        error = disk->sync_directory(disk->ctx, m->directory_fd);
        if (error < 0)
            m->copy_bytes = 0; /* creates the file again next time, so that the rename is synced */
    } else {
        disk->unlink(disk->ctx, m->directory_fd, TEMPORARY_NAME);
    }
    return error;
}

/* Overwrites the older of the two states. */
static int journal_manifest_update(journal_manifest *m) {
    const disk_calls *disk = m->disk;
    int fd = disk->open(disk->ctx, m->directory_fd, JOURNAL_MANIFEST_NAME, O_RDWR);
    if (fd < 0)
        return fd;
    int state = !m->state;
    int error = journal_manifest_write(m, fd, m->copy_bytes, STATE_COPIES,
                               (uint64_t)state * STATE_COPIES * m->copy_bytes);
    disk->close(disk->ctx, fd);
    if (error == 0)
        m->state = state;
    return error;
}

int journal_manifest_store(journal_manifest *m) {
    if (!m->changed)
        return 0;
    m->sequence++;
    int fits = COPY_HEADER_BYTES + m->count * ID_BYTES <= m->copy_bytes;
    int error = fits ? journal_manifest_update(m) : journal_manifest_create(m);
    /* The manifest was removed from outside while in use. */
    if (error == -ENOENT && fits)
        error = journal_manifest_create(m);
    m->changed = error < 0;
    return error;
}
