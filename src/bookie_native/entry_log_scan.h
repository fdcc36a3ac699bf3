/*
 * entry_log_scan.h - reading a log without its index: one stretch, or record by record.
 *
 * Both read into memory of their own, never through a mapping: a page that the disk cannot bring
 * would end the process, and an error of the disk could not be told from damage.
 */
#ifndef PYXBROKER_ENTRY_LOG_SCAN_H
#define PYXBROKER_ENTRY_LOG_SCAN_H

#include "disk.h"
#include "record.h"

/* How a log is opened to be read, and how long it is tried. */
typedef enum log_reading {
    LOG_READ_ONCE = 0,
    LOG_READ_DIRECT = 1,   /* past the page cache, where the file system can */
    LOG_READ_PATIENTLY = 2 /* at start: again and again for a while (disk_patience.h) */
} log_reading;

/* Some bytes of a file. */
typedef struct log_piece {
    uint8_t *memory;   /* to be freed with log_piece_free */
    const uint8_t *at; /* the first byte that was asked for */
    size_t bytes;      /* fewer than asked for when the file ends before */
} log_piece;

/* Opens a file for reading. how: log_reading's flags. Returns the descriptor or an error. */
int disk_open_to_read(const disk_calls *disk, int directory_fd, const char *name, unsigned how);

/* The same for a log. The error is entry_log_error's. */
int log_open_to_read(const disk_calls *disk, int directory_fd, uint64_t id, unsigned how);

/* Reads a stretch of an open log. Returns 0 or an error (entry_log_error). */
int log_piece_read(const disk_calls *disk, int fd, unsigned how, uint64_t offset, size_t bytes,
                   log_piece *out);
void log_piece_free(log_piece *piece);

/* A walk over the records of a stretch; all but the first four fields begin as zeros. */
typedef struct log_scan {
    const disk_calls *disk;
    int fd;
    unsigned how;
    uint32_t seed;
    uint64_t at, end;    /* bytes of the file: the next one to look at, and where to stop */
    uint64_t lost_bytes; /* before at, by the last step that said RECORD_LOST */
    int lost_zero;       /* they are all zero: a hole */
    log_piece piece;
    uint64_t piece_at; /* in the file, of piece.at */
    int error;         /* of the disk, which ends the walk */
} log_scan;

/* The next finding. A record's payload stays until the next step; the record ends at scan->at.
 * After RECORD_NONE scan->error tells whether the end was reached. */
enum record_found log_scan_next(log_scan *scan, record *out);

void log_scan_close(log_scan *scan);

#endif
