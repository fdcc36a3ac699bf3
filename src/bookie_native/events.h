/*
 * events.h - sentences for the operator, kept in a bounded ring until the owner takes them.
 *
 * Events of one cause are one line: the first few are told as they come, what follows within some
 * seconds is only counted, and then the last of it is told with the count. A cause is the format of
 * the sentence.
 */
#ifndef PYXBROKER_EVENTS_H
#define PYXBROKER_EVENTS_H

#include <pthread.h>

#include "storage.h"

enum {
    EVENTS_KEPT_MAX = 64,
    EVENT_CAUSES_MAX = 32, /* remembered at a time */
    EVENTS_OF_A_CAUSE = 4  /* told each for itself, within one window */
};

#define EVENTS_WINDOW_NS 10000000000u

enum event_severity { EVENT_INFO = 0, EVENT_WARNING = 1, EVENT_ERROR = 2 };

typedef struct event_cause {
    const char *format;   /* a literal, known by its address; NULL: this place is free */
    uint64_t since_ns;    /* the window's beginning */
    unsigned told;        /* in this window */
    uint64_t counted;     /* in this window, and not told */
    storage_event latest; /* of those */
} event_cause;

typedef struct events {
    pthread_mutex_t lock;
    storage_event kept[EVENTS_KEPT_MAX];
    unsigned first, count;
    unsigned dropped; /* since the last one taken */
    event_cause causes[EVENT_CAUSES_MAX];
    unsigned cause_count;
    uint64_t window_ns;
    int event_fd; /* rung for each event */
} events;

void events_open(events *log, int event_fd);
void events_close(events *log);

/* Any thread. format is a literal. */
void events_add(events *log, enum event_severity severity, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* 1 and *out, or 0. Says how many were dropped, when the ring was full, as an event of its own. */
int events_take(events *log, storage_event *out);

/* Rings an eventfd. */
void event_ring(int event_fd);

#endif
