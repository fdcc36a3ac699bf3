/*
 * entry_log_scan.h - reading a log without its index: a byte range, or record by record.
 *
 * Data is read into separate memory and never mapped: SIGBUS for an unreadable page would end the
 * process, and a disk error could not be distinguished from damage.
 */
#ifndef PYXBROKER_ENTRY_LOG_SCAN_H
#define PYXBROKER_ENTRY_LOG_SCAN_H

#include "disk.h"
#include "record.h"

/* Flags for opening and reading a log. */
typedef enum log_reading {
    LOG_READ_ONCE = 0,
    LOG_READ_DIRECT = 1,   /* bypass the page cache, where the file system supports it */
    LOG_READ_RETRYING = 2 /* at start: retry for a while (disk_retry.h) */
} log_reading;

/* A range of bytes of a file. */
typedef struct log_piece {
    uint8_t *memory;   /* to be freed with log_piece_free */
    const uint8_t *at; /* the first requested byte */
    size_t bytes;      /* fewer than requested when the file ends earlier */
} log_piece;

/* Opens a file for reading. how: log_reading's flags. Returns the descriptor or an error. */
int disk_open_to_read(const disk_calls *disk, int directory_fd, const char *name, unsigned how);

/* Opens a log for reading. The error is entry_log_error's. */
int log_open_to_read(const disk_calls *disk, int directory_fd, uint64_t id, unsigned how);

/* Reads a byte range of an open log. Returns 0 or an error (entry_log_error). */
int log_piece_read(const disk_calls *disk, int fd, unsigned how, uint64_t offset, size_t bytes,
                   log_piece *out);
void log_piece_free(log_piece *piece);

/* A scan over the records of a byte range. All but the first four fields start as zeros. */
typedef struct log_scan {
    const disk_calls *disk;
    int fd;
    unsigned how;
    uint32_t seed;
    uint64_t at, end;    /* offsets in the file: of the next record, and of the end of the range */
    uint64_t lost_bytes; /* before `at`, set by the last step that returned RECORD_LOST */
    int lost_zero;       /* 1 when these bytes are all zero: a hole */
    log_piece piece;
    uint64_t piece_at; /* offset in the file of piece.at */
    int error;         /* disk error, which ends the scan */
} log_scan;

/* Returns the next finding. A record ends at scan->at; its payload is valid until the next step.
 * After RECORD_NONE, scan->error is 0 when the end of the range was reached. */
enum record_found log_scan_next(log_scan *scan, record *out);

void log_scan_close(log_scan *scan);

#endif
