/* scene.c - see scene.h. */
#include "scene.h"

#include <stdio.h>

#include "check.h"

disk_faults faults;

void scene_prepare(scene *c) {
    place_make(&c->p);
    disk_faults_open(&faults);
    c->calls = faults.calls;
    c->options = place_options(&c->p, &c->calls);
    c->options.dirty_bytes_max = 1 << 20;
    c->options.cache_bytes_max = 4 << 20;
    c->options.journal_file_bytes = 2 << 20;
}

void scene_close(scene *c) {
    CHECK(storage_close(c->s, 1) == 0);
    disk_faults_close(&faults);
    place_remove(&c->p);
}

void break_call(enum fault_call call, const char *match, uint64_t times, int error) {
    fault_rule rule = {.call = call, .times = times, .error = error, .short_bytes = -1};
    snprintf(rule.match, sizeof rule.match, "%s", match);
    CHECK(disk_faults_add(&faults, &rule) == 0);
}
