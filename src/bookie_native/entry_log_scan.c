/* entry_log_scan.c - reading ranges of a log and scanning them for records. */
#define _GNU_SOURCE
#include "entry_log_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "bytes.h"
#include "disk_retry.h"
#include "entry_log.h"

enum { SCAN_PIECE_BYTES = 1 << 20 };

int disk_open_to_read(const disk_calls *disk, int directory_fd, const char *name, unsigned how) {
    int retrying = (how & LOG_READ_RETRYING) != 0;
    if ((how & LOG_READ_DIRECT) != 0)
        return retrying ? disk_open_direct_retrying(disk, directory_fd, name, O_RDONLY)
                         : disk_open_direct(disk, directory_fd, name, O_RDONLY);
    return retrying ? disk_open_retrying(disk, directory_fd, name, O_RDONLY)
                     : disk->open(disk->ctx, directory_fd, name, O_RDONLY);
}

int log_open_to_read(const disk_calls *disk, int directory_fd, uint64_t id, unsigned how) {
    char name[LOG_NAME_BYTES];
    entry_log_name(name, id);
    int fd = disk_open_to_read(disk, directory_fd, name, how);
    return fd >= 0 ? fd : entry_log_error(fd);
}

int log_piece_read(const disk_calls *disk, int fd, unsigned how, uint64_t offset, size_t bytes,
                   log_piece *out) {
    uint64_t begin = offset;
    size_t whole = bytes;
    if ((how & LOG_READ_DIRECT) != 0) {
        begin = round_down(offset, BLOCK_BYTES);
        whole = round_up(offset + bytes, BLOCK_BYTES) - begin;
    }
    size_t before = (size_t)(offset - begin);
    uint8_t *memory = aligned_alloc(BLOCK_BYTES, round_up(whole + 1, BLOCK_BYTES));
    if (memory == NULL)
        return -ENOMEM;
    ssize_t got = (how & LOG_READ_RETRYING) != 0
                      ? disk_read_retrying(disk, fd, memory, whole, (int64_t)begin)
                      : disk_read_all(disk, fd, memory, whole, (int64_t)begin);
    if (got < 0) {
        free(memory);
        return entry_log_error((int)got);
    }
    size_t there = (size_t)got > before ? (size_t)got - before : 0;
    *out = (log_piece){
        .memory = memory, .at = memory + before, .bytes = there < bytes ? there : bytes};
    return 0;
}

void log_piece_free(log_piece *piece) {
    free(piece->memory);
    *piece = (log_piece){0};
}

/* Returns the next bytes of the scan. Returns NULL after a disk error (scan->error), or when the
 * file is shorter than expected, which moves the end. */
static const uint8_t *log_scan_fetch(log_scan *scan, uint64_t bytes) {
    uint64_t from = scan->at;
    if (scan->piece.memory != NULL && from >= scan->piece_at &&
        from + bytes <= scan->piece_at + scan->piece.bytes)
        return scan->piece.at + (from - scan->piece_at);
    log_piece_free(&scan->piece);
    uint64_t wanted = bytes < SCAN_PIECE_BYTES ? SCAN_PIECE_BYTES : bytes;
    if (wanted > scan->end - from)
        wanted = scan->end - from;
    scan->error =
        log_piece_read(scan->disk, scan->fd, scan->how, from, (size_t)wanted, &scan->piece);
    if (scan->error < 0)
        return NULL;
    scan->piece_at = from;
    if (scan->piece.bytes < wanted)
        scan->end = from + scan->piece.bytes;
    return scan->piece.bytes >= bytes ? scan->piece.at : NULL;
}

/* Reports the bytes from start up to the current position as lost. */
static enum record_found log_scan_lost(log_scan *scan, uint64_t start, int zero) {
    scan->lost_bytes = scan->at - start;
    scan->lost_zero = zero;
    return RECORD_LOST;
}

enum record_found log_scan_next(log_scan *scan, record *out) {
    uint64_t start = scan->at;
    int zero = 1;
    while (scan->at + RECORD_HEADER_BYTES <= scan->end) {
        const uint8_t *at = log_scan_fetch(scan, RECORD_HEADER_BYTES);
        if (at != NULL && record_decode(at, scan->end - scan->at, scan->seed, out)) {
            if (scan->at != start)
                return log_scan_lost(scan, start, zero);
            at = log_scan_fetch(scan, record_bytes(out->length));
            if (at != NULL) {
                out->payload = at + RECORD_HEADER_BYTES;
                scan->at += record_bytes(out->length);
                return record_payload_intact(out) ? RECORD_GOOD : RECORD_DAMAGED;
            }
        }
        if (scan->error < 0)
            return RECORD_NONE;
        if (at == NULL)
            continue; /* the end moved */
        zero &= load_le64(at) == 0;
        scan->at += RECORD_ALIGNMENT;
    }
    if (start >= scan->end)
        return RECORD_NONE;
    const uint8_t *rest = log_scan_fetch(scan, scan->end - scan->at);
    if (scan->error < 0)
        return RECORD_NONE;
    zero &= rest == NULL || all_zero(rest, scan->end - scan->at);
    scan->at = scan->end;
    return log_scan_lost(scan, start, zero);
}

void log_scan_close(log_scan *scan) {
    log_piece_free(&scan->piece);
}
