/* events.c - the ring of operator events. */
#include "events.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

void events_open(events *log, int event_fd) {
    pthread_mutex_init(&log->lock, NULL);
    log->first = log->count = log->dropped = 0;
    log->event_fd = event_fd;
}

void events_close(events *log) {
    pthread_mutex_destroy(&log->lock);
}

void event_ring(int event_fd) {
    uint64_t one = 1;
    /* Only EAGAIN is possible, when the counter is at its end: then it is readable already. */
    ssize_t written = write(event_fd, &one, sizeof one);
    (void)written;
}

void events_add(events *log, enum event_severity severity, const char *format, ...) {
    storage_event event = {.severity = severity};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(event.text, sizeof event.text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&log->lock);
    if (log->count < EVENTS_KEPT_MAX)
        log->kept[(log->first + log->count++) % EVENTS_KEPT_MAX] = event;
    else
        log->dropped++;
    pthread_mutex_unlock(&log->lock);
    event_ring(log->event_fd);
}

int events_take(events *log, storage_event *out) {
    int taken = 1;
    pthread_mutex_lock(&log->lock);
    if (log->count > 0) {
        *out = log->kept[log->first];
        log->first = (log->first + 1) % EVENTS_KEPT_MAX;
        log->count--;
    } else if (log->dropped > 0) {
        out->severity = EVENT_WARNING;
        snprintf(out->text, sizeof out->text,
                 "%u more events came faster than they were taken and were dropped", log->dropped);
        log->dropped = 0;
    } else {
        taken = 0;
    }
    pthread_mutex_unlock(&log->lock);
    return taken;
}
