/*
 * events.h - messages for the operator, kept in a bounded ring until the owner takes them.
 *
 * Events of one cause are rate-limited. In a time window the first few are reported as they occur;
 * further ones are only counted. At the end of the window the last one is reported with the count.
 * A cause is identified by the format string of the message.
 */
#ifndef PYXBROKER_EVENTS_H
#define PYXBROKER_EVENTS_H

#include <pthread.h>

#include "storage.h"

enum {
    EVENTS_RING_MAX = 64,
    EVENT_CAUSES_MAX = 32, /* tracked at the same time */
    EVENTS_PER_CAUSE_MAX = 4  /* reported one by one in a window */
};

#define EVENTS_WINDOW_NS 10000000000u

enum event_severity { EVENT_INFO = 0, EVENT_WARNING = 1, EVENT_ERROR = 2 };

typedef struct event_cause {
    const char *format;   /* a literal, compared by address */
    uint64_t since_ns;    /* start of the window */
    unsigned reported;       /* events reported in this window */
    uint64_t counted;     /* events of this window that were only counted */
    storage_event latest; /* the last counted event */
} event_cause;

typedef struct events {
    pthread_mutex_t lock;
    storage_event ring[EVENTS_RING_MAX];
    unsigned first, count;
    unsigned dropped; /* because the ring was full, since the last event taken */
    event_cause causes[EVENT_CAUSES_MAX];
    unsigned cause_count;
    uint64_t window_ns;
    int event_fd; /* signaled for each event */
} events;

void events_open(events *log, int event_fd);
void events_close(events *log);

/* Adds an event. format must be a literal. Any thread. */
void events_add(events *log, enum event_severity severity, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Takes the oldest event. Returns 1 and *out, or 0 if the ring is empty. If the ring was full, an
 * event reports the number of dropped events. */
int events_take(events *log, storage_event *out);

/* Signals an eventfd. */
void event_ring(int event_fd);

#endif
