/* events.h - sentences for the operator, kept in a bounded ring until the owner takes them. */
#ifndef PYXBROKER_EVENTS_H
#define PYXBROKER_EVENTS_H

#include <pthread.h>

#include "storage.h"

enum { EVENTS_KEPT_MAX = 64 };

enum event_severity { EVENT_INFO = 0, EVENT_WARNING = 1, EVENT_ERROR = 2 };

typedef struct events {
    pthread_mutex_t lock;
    storage_event kept[EVENTS_KEPT_MAX];
    unsigned first, count;
    unsigned dropped; /* since the last one taken */
    int event_fd;     /* rung for each event */
} events;

void events_open(events *log, int event_fd);
void events_close(events *log);

/* Any thread. */
void events_add(events *log, enum event_severity severity, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* 1 and *out, or 0. Says how many were dropped, when the ring was full, as an event of its own. */
int events_take(events *log, storage_event *out);

/* Rings an eventfd. */
void event_ring(int event_fd);

#endif
