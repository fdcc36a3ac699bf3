/* events.c - the rate-limited ring of operator events. */
#include "events.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COUNT_BYTES_MAX = 72 }; /* of " (and ... more like it in the last ... s)" */

void events_open(events *log, int event_fd) {
    memset(log, 0, sizeof *log);
    pthread_mutex_init(&log->lock, NULL);
    log->window_ns = EVENTS_WINDOW_NS;
    log->event_fd = event_fd;
}

void events_close(events *log) {
    pthread_mutex_destroy(&log->lock);
}

void event_ring(int event_fd) {
    uint64_t one = 1;
    /* Only EAGAIN is possible, when the counter is at its maximum; then the fd is readable. */
    ssize_t written = write(event_fd, &one, sizeof one);
    (void)written;
}

static uint64_t events_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void events_push(events *log, const storage_event *event) {
    if (log->count < EVENTS_RING_MAX)
        log->ring[(log->first + log->count++) % EVENTS_RING_MAX] = *event;
    else
        log->dropped++;
}

/* Reports the last counted event of a cause, with the count. Under the lock. */
static void cause_report(events *log, event_cause *cause, uint64_t now) {
    if (cause->counted == 0)
        return;
    storage_event *latest = &cause->latest;
    if (cause->counted > 1) {
        size_t length = strlen(latest->text);
        if (length > sizeof latest->text - COUNT_BYTES_MAX)
            length = sizeof latest->text - COUNT_BYTES_MAX;
        snprintf(latest->text + length, COUNT_BYTES_MAX,
                 " (and %" PRIu64 " more like it in the last %" PRIu64 " s)", cause->counted - 1,
                 (now - cause->since_ns + 999999999u) / 1000000000u);
    }
    events_push(log, latest);
    cause->counted = 0;
}

/* Ends the expired windows and reports the events counted in them. Under the lock. */
static void events_end_windows(events *log, uint64_t now) {
    for (unsigned i = 0; i < log->cause_count;) {
        event_cause *cause = &log->causes[i];
        if (now - cause->since_ns < log->window_ns) {
            i++;
            continue;
        }
        cause_report(log, cause, now);
        *cause = log->causes[--log->cause_count];
    }
}

/* Returns the cause of the format string; replaces the one with the oldest window if needed. */
static event_cause *events_cause(events *log, const char *format, uint64_t now) {
    event_cause *oldest = log->causes;
    for (unsigned i = 0; i < log->cause_count; i++) {
        if (log->causes[i].format == format)
            return &log->causes[i];
        if (log->causes[i].since_ns < oldest->since_ns)
            oldest = &log->causes[i];
    }
    event_cause *cause = oldest;
    if (log->cause_count < EVENT_CAUSES_MAX)
        cause = &log->causes[log->cause_count++];
    else
        cause_report(log, cause, now);
    cause->format = format;
    cause->since_ns = now;
    cause->reported = 0;
    cause->counted = 0;
    return cause;
}

void events_add(events *log, enum event_severity severity, const char *format, ...) {
    storage_event event = {.severity = severity};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(event.text, sizeof event.text, format, arguments);
    va_end(arguments);
    uint64_t now = events_now();
    pthread_mutex_lock(&log->lock);
    events_end_windows(log, now);
    event_cause *cause = events_cause(log, format, now);
    int reported = cause->reported < EVENTS_PER_CAUSE_MAX;
    if (reported) {
        cause->reported++;
        events_push(log, &event);
    } else {
        cause->counted++;
        cause->latest = event;
    }
    pthread_mutex_unlock(&log->lock);
    if (reported)
        event_ring(log->event_fd);
}

int events_take(events *log, storage_event *out) {
    int taken = 1;
    pthread_mutex_lock(&log->lock);
    if (log->cause_count > 0)
        events_end_windows(log, events_now());
    if (log->count > 0) {
        *out = log->ring[log->first];
        log->first = (log->first + 1) % EVENTS_RING_MAX;
        log->count--;
    } else if (log->dropped > 0) {
        out->severity = EVENT_WARNING;
        snprintf(out->text, sizeof out->text,
                 "%u more events were dropped, because they arrived faster than they were read",
                 log->dropped);
        log->dropped = 0;
    } else {
        taken = 0;
    }
    pthread_mutex_unlock(&log->lock);
    return taken;
}
