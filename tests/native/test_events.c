/* test_events.c - events of one cause are one line with a count; none is lost without a word. */
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "events.h"

enum { DAMAGED = 22000, WINDOW_MS = 50 };

static events log_of_test;
static storage_event taken[EVENTS_RING_MAX + 1];

static int take_all(void) {
    int count = 0;
    while (count <= EVENTS_RING_MAX && events_take(&log_of_test, &taken[count]))
        count++;
    return count;
}

static void start(void) {
    events_open(&log_of_test, eventfd(0, EFD_NONBLOCK));
    log_of_test.window_ns = WINDOW_MS * 1000000u;
}

static void stop(void) {
    close(log_of_test.event_fd);
    events_close(&log_of_test);
}

static void let_the_window_end(void) {
    nanosleep(&(struct timespec){.tv_nsec = (WINDOW_MS + 5) * 1000000}, NULL);
}

static void test_many_of_one_cause_are_a_handful_of_lines(void) {
    start();
    log_of_test.window_ns = EVENTS_WINDOW_NS;
    for (int entry = 0; entry < DAMAGED; entry++)
        events_add(&log_of_test, EVENT_ERROR, "entry %d is damaged", entry);
    CHECK(take_all() == EVENTS_PER_CAUSE_MAX);
    CHECK(strcmp(taken[0].text, "entry 0 is damaged") == 0);
    log_of_test.window_ns = 0;
    CHECK(take_all() == 1);
    char expected[128];
    snprintf(expected, sizeof expected, "entry %d is damaged (and %d more like it in the last 1 s)",
             DAMAGED - 1, DAMAGED - EVENTS_PER_CAUSE_MAX - 1);
    CHECK(strcmp(taken[0].text, expected) == 0 && taken[0].severity == EVENT_ERROR);
    CHECK(take_all() == 0);
    stop();
}

static void test_the_count_is_told_when_the_window_is_over(void) {
    start();
    for (int i = 0; i < EVENTS_PER_CAUSE_MAX + 1; i++)
        events_add(&log_of_test, EVENT_INFO, "number %d", i);
    CHECK(take_all() == EVENTS_PER_CAUSE_MAX);
    let_the_window_end();
    CHECK(take_all() == 1 && strcmp(taken[0].text, "number 4") == 0);
    /* A new window: told at once again. */
    events_add(&log_of_test, EVENT_INFO, "number %d", 5);
    CHECK(take_all() == 1);
    stop();
}

static void test_other_causes_are_told_meanwhile(void) {
    start();
    for (int i = 0; i < 100; i++)
        events_add(&log_of_test, EVENT_WARNING, "often");
    CHECK(take_all() == EVENTS_PER_CAUSE_MAX);
    events_add(&log_of_test, EVENT_ERROR, "once");
    CHECK(take_all() == 1 && strcmp(taken[0].text, "once") == 0);
    stop();
}

/* More causes than are remembered: each is told, and so is what was counted of the oldest. */
static void test_causes_are_bounded(void) {
    static char formats[2 * EVENT_CAUSES_MAX][32];
    start();
    log_of_test.window_ns = EVENTS_WINDOW_NS;
    for (int i = 0; i < EVENTS_PER_CAUSE_MAX + 7; i++)
        events_add(&log_of_test, EVENT_INFO, "the oldest %d", i);
    CHECK(take_all() == EVENTS_PER_CAUSE_MAX);
    int lines = 0, counted = 0;
    for (int i = 0; i < 2 * EVENT_CAUSES_MAX; i++) {
        snprintf(formats[i], sizeof formats[i], "cause %d", i);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
        events_add(&log_of_test, EVENT_INFO, formats[i]);
#pragma GCC diagnostic pop
        int count = take_all();
        for (int k = 0; k < count; k++)
            counted += strstr(taken[k].text, "and 6 more like it") != NULL;
        lines += count;
    }
    CHECK(lines == 2 * EVENT_CAUSES_MAX + 1 && counted == 1);
    stop();
}

static void test_a_long_sentence_keeps_its_count(void) {
    char text[sizeof taken[0].text];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    start();
    for (int i = 0; i < EVENTS_PER_CAUSE_MAX + 3; i++)
        events_add(&log_of_test, EVENT_INFO, "%s", text);
    CHECK(take_all() == EVENTS_PER_CAUSE_MAX);
    let_the_window_end();
    CHECK(take_all() == 1);
    CHECK(strstr(taken[0].text, "x (and 2 more like it in the last 1 s)") != NULL);
    stop();
}

static const check_test tests[] = {
    {"events_many_of_one_cause_are_a_handful_of_lines",
     test_many_of_one_cause_are_a_handful_of_lines},
    {"events_the_count_is_told_when_the_window_is_over",
     test_the_count_is_told_when_the_window_is_over},
    {"events_other_causes_are_told_meanwhile", test_other_causes_are_told_meanwhile},
    {"events_causes_are_bounded", test_causes_are_bounded},
    {"events_a_long_sentence_keeps_its_count", test_a_long_sentence_keeps_its_count},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
