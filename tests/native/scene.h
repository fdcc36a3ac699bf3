/* scene.h - a storage in a temporary directory, on a disk whose calls a test can break. */
#ifndef PYXBROKER_TESTS_SCENE_H
#define PYXBROKER_TESTS_SCENE_H

#include "disk_faults.h"
#include "support.h"

typedef struct scene {
    place p;
    disk_calls calls; /* faults.calls, of which a test may replace some */
    storage_options options;
    storage *s;
} scene;

/* What breaks in the scene; there is one at a time. */
extern disk_faults faults;

/* An empty directory, a disk without faults, and limits so large that nothing is flushed unasked;
 * who calls it opens the storage. */
void scene_prepare(scene *c);

void scene_close(scene *c);

/* Lets the next calls of a kind on files whose name holds match fail. error: negative. */
void break_call(enum fault_call call, const char *match, uint64_t times, int error);

#endif
