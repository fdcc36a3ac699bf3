/*
 * module.c - pyxbroker._native: the Python interface of the storage, and the capsule for Cython.
 *
 * Only this file and module_faults.c use the Python API. The methods here serve infrequent calls,
 * tools and tests. Frequent calls go through struct native_api (native_api.h) without Python
 * objects.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>

#include "bytes.h"
#include "crc32c.h"
#include "module.h"
#include "native_api.h"
#include "record.h"
#include "storage.h"

enum { READ_MAX = 1 << 16, LEDGERS_MAX = 1 << 20 };

/* A read whose result was not taken yet. It owns the array that the read thread fills. */
typedef struct pending_read {
    uint64_t tag;
    PyObject *user_tag;
    entry_ref *out;
    struct pending_read *next;
} pending_read;

typedef struct {
    PyObject_HEAD
    storage *storage; /* NULL once closed */
    PyObject *faults; /* keeps the table of disk calls alive */
    PyObject *handle;
    pending_read *pending;
    uint64_t next_tag;
} StorageObject;

/* Raises OSError for a negative error of storage.h. Returns NULL. Errors of completed reads are
 * returned as numbers instead. */
static PyObject *raise_error(int64_t code) {
    const char *text = NULL;
    switch (code) {
    case STORAGE_NO_LEDGER: text = "the ledger is unknown to this bookie"; break;
    case STORAGE_FULL: text = "the write cache is full"; break;
    case STORAGE_FENCED: text = "the ledger is fenced"; break;
    case STORAGE_FAILED: text = "the journal failed"; break;
    default: text = strerror((int)-code); break;
    }
    PyObject *arguments = Py_BuildValue("(is)", (int)-code, text);
    if (arguments != NULL) {
        PyErr_SetObject(PyExc_OSError, arguments);
        Py_DECREF(arguments);
    }
    return NULL;
}

static storage *opened(StorageObject *self) {
    if (self->storage == NULL)
        PyErr_SetString(PyExc_ValueError, "the storage is closed");
    return self->storage;
}

static int storage_init(StorageObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"journal_directory", "ledger_directory", "journal_file_bytes",
                            "dirty_bytes_max", "cache_bytes_max", "entry_bytes_max",
                            "journal_sync_data", "accept_loss", "faults", NULL};
    PyObject *journal = NULL, *ledgers = NULL, *faults = Py_None;
    unsigned long long file_bytes = 0, dirty = 0, cache = 0;
    unsigned int entry_bytes = 0;
    int sync_data = 1, accept_loss = 0;
    if (self->storage != NULL) {
        PyErr_SetString(PyExc_ValueError, "the storage is open");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&|$KKKIppO:Storage", names,
                                     PyUnicode_FSConverter, &journal, PyUnicode_FSConverter,
                                     &ledgers, &file_bytes, &dirty, &cache, &entry_bytes,
                                     &sync_data, &accept_loss, &faults))
        return -1;
    int result = -1;
    const disk_calls *disk = NULL;
    if (faults == Py_None || (disk = disk_faults_calls(faults)) != NULL) {
        storage_options options = {.journal_directory = PyBytes_AS_STRING(journal),
                                   .ledger_directory = PyBytes_AS_STRING(ledgers),
                                   .journal_file_bytes = file_bytes,
                                   .dirty_bytes_max = dirty,
                                   .cache_bytes_max = cache,
                                   .entry_bytes_max = entry_bytes,
                                   .journal_sync_data = sync_data,
                                   .accept_loss = accept_loss,
                                   .disk = disk};
        char error[512];
        int status;
        Py_BEGIN_ALLOW_THREADS
        status = storage_open(&options, &self->storage, error, sizeof error);
        Py_END_ALLOW_THREADS
        if (status == 0) {
            Py_XSETREF(self->faults, Py_NewRef(faults));
            Py_XSETREF(self->handle,
                       PyCapsule_New(self->storage, "pyxbroker._native.storage", NULL));
            result = self->handle == NULL ? -1 : 0;
        } else {
            PyObject *arguments = Py_BuildValue("(is)", -status, error);
            if (arguments != NULL)
                PyErr_SetObject(PyExc_OSError, arguments);
            Py_XDECREF(arguments);
        }
    }
    Py_DECREF(journal);
    Py_DECREF(ledgers);
    return result;
}

/* Closes the storage if it is open. Returns the result of storage_close. */
static int storage_object_close(StorageObject *self, int flush) {
    storage *s = self->storage;
    if (s == NULL)
        return 0;
    self->storage = NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = storage_close(s, flush);
    Py_END_ALLOW_THREADS
    while (self->pending != NULL) {
        pending_read *next = self->pending->next;
        Py_DECREF(self->pending->user_tag);
        PyMem_Free(self->pending->out);
        PyMem_Free(self->pending);
        self->pending = next;
    }
    return status;
}

static void storage_dealloc(StorageObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    /* Without an explicit close there is no flush; the journal has all durable entries. */
    storage_object_close(self, 0);
    Py_XDECREF(self->handle);
    Py_XDECREF(self->faults);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *storage_py_close(StorageObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"flush", NULL};
    int flush = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:close", names, &flush))
        return NULL;
    int status = storage_object_close(self, flush);
    if (status < 0)
        return raise_error(status);
    Py_RETURN_NONE;
}

static PyObject *storage_py_add(StorageObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"header", "data", "crc", "flags", NULL};
    Py_buffer header, data;
    PyObject *crc = Py_None;
    unsigned int flags = 0;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*|OI:add", names, &header,
                                                  &data, &crc, &flags))
        return NULL;
    int64_t result = -EMSGSIZE;
    unsigned long data_crc = crc == Py_None ? 0 : PyLong_AsUnsignedLongMask(crc);
    if (crc != Py_None)
        flags |= STORAGE_ADD_HAS_CRC;
    if (!PyErr_Occurred() && header.len <= UINT32_MAX && data.len <= UINT32_MAX)
        result = storage_add(s, header.buf, (uint32_t)header.len, data.buf, (uint32_t)data.len,
                             (uint32_t)data_crc, flags);
    PyBuffer_Release(&header);
    PyBuffer_Release(&data);
    if (PyErr_Occurred())
        return NULL;
    return result < 0 ? raise_error(result) : PyLong_FromLongLong(result);
}

static PyObject *storage_py_commit(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    if (s == NULL)
        return NULL;
    storage_commit(s);
    Py_RETURN_NONE;
}

static PyObject *storage_py_fence(StorageObject *self, PyObject *args) {
    long long ledger;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTuple(args, "L:fence", &ledger))
        return NULL;
    int64_t result = storage_fence(s, ledger);
    return result < 0 ? raise_error(result) : PyLong_FromLongLong(result);
}

static PyObject *storage_py_master_key(StorageObject *self, PyObject *args) {
    long long ledger;
    const char *key;
    Py_ssize_t length;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTuple(args, "Ly#:master_key", &ledger, &key, &length))
        return NULL;
    if (length != 20) {
        PyErr_SetString(PyExc_ValueError, "a master key has 20 bytes");
        return NULL;
    }
    int64_t result = storage_master_key(s, ledger, (const uint8_t *)key);
    return result < 0 ? raise_error(result) : PyLong_FromLongLong(result);
}

/* Returns a list of (entry id, bytes) and drops the pins. */
static PyObject *entries_list(entry_ref *refs, int count) {
    PyObject *list = PyList_New(count);
    for (int i = 0; i < count && list != NULL; i++) {
        PyObject *item = Py_BuildValue("(Ly#)", (long long)refs[i].entry_id,
                                       (const char *)refs[i].data, (Py_ssize_t)refs[i].length);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    storage_unpin(refs, count);
    return list;
}

static PyObject *storage_py_read(StorageObject *self, PyObject *args) {
    long long ledger, first, last;
    int max;
    unsigned long long bytes_max;
    storage *s = opened(self);
    if (s == NULL ||
        !PyArg_ParseTuple(args, "LLLiK:read", &ledger, &first, &last, &max, &bytes_max))
        return NULL;
    if (max < 1 || max > READ_MAX) {
        PyErr_Format(PyExc_ValueError, "max is not between 1 and %d", READ_MAX);
        return NULL;
    }
    entry_ref *refs = PyMem_Calloc((size_t)max, sizeof *refs);
    if (refs == NULL)
        return PyErr_NoMemory();
    int count = storage_read_cached(s, ledger, first, last, max, bytes_max, refs);
    PyObject *list = entries_list(refs, count);
    PyMem_Free(refs);
    return list;
}

static PyObject *storage_py_read_submit(StorageObject *self, PyObject *args) {
    long long ledger, first, last;
    int max;
    unsigned long long bytes_max;
    PyObject *tag;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTuple(args, "LLLiKO:read_submit", &ledger, &first, &last, &max,
                                       &bytes_max, &tag))
        return NULL;
    if (max < 1 || max > READ_MAX) {
        PyErr_Format(PyExc_ValueError, "max is not between 1 and %d", READ_MAX);
        return NULL;
    }
    pending_read *pending = PyMem_Calloc(1, sizeof *pending);
    entry_ref *refs = PyMem_Calloc((size_t)max, sizeof *refs);
    if (pending == NULL || refs == NULL) {
        PyMem_Free(pending);
        PyMem_Free(refs);
        return PyErr_NoMemory();
    }
    *pending = (pending_read){.tag = ++self->next_tag,
                              .user_tag = Py_NewRef(tag),
                              .out = refs,
                              .next = self->pending};
    int status = storage_read_submit(s, ledger, first, last, max, bytes_max, refs, pending->tag);
    if (status < 0) {
        Py_DECREF(pending->user_tag);
        PyMem_Free(pending);
        PyMem_Free(refs);
        return raise_error(status);
    }
    self->pending = pending;
    Py_RETURN_NONE;
}

/* Removes the pending read with this tag from the list and returns it. */
static pending_read *take_pending(StorageObject *self, uint64_t tag) {
    pending_read **at = &self->pending;
    while (*at != NULL && (*at)->tag != tag)
        at = &(*at)->next;
    pending_read *found = *at;
    if (found != NULL)
        *at = found->next;
    return found;
}

static PyObject *storage_py_read_completions(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    PyObject *list = s == NULL ? NULL : PyList_New(0);
    read_completion done;
    while (list != NULL && storage_read_completions(s, &done, 1) == 1) {
        pending_read *pending = take_pending(self, done.tag);
        if (pending == NULL)
            continue; /* submitted through the capsule, whose user takes its own completions */
        PyObject *result = done.count < 0 ? PyLong_FromLongLong(done.count)
                                          : entries_list(pending->out, (int)done.count);
        PyObject *item = result == NULL ? NULL : Py_BuildValue("(ON)", pending->user_tag, result);
        Py_DECREF(pending->user_tag);
        PyMem_Free(pending->out);
        PyMem_Free(pending);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *storage_py_next_event(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    storage_event event;
    if (s == NULL)
        return NULL;
    if (!storage_next_event(s, &event))
        Py_RETURN_NONE;
    PyObject *text = PyUnicode_DecodeUTF8(event.text, (Py_ssize_t)strlen(event.text), "replace");
    return text == NULL ? NULL : Py_BuildValue("(iN)", event.severity, text);
}

static PyObject *storage_py_last_entry(StorageObject *self, PyObject *args) {
    long long ledger;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTuple(args, "L:last_entry", &ledger))
        return NULL;
    int64_t result = storage_last_entry(s, ledger);
    return result < -1 ? raise_error(result) : PyLong_FromLongLong(result);
}

static PyObject *storage_py_is_fenced(StorageObject *self, PyObject *args) {
    long long ledger;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTuple(args, "L:is_fenced", &ledger))
        return NULL;
    int result = storage_is_fenced(s, ledger);
    return result < 0 ? raise_error(result) : PyBool_FromLong(result);
}

static PyObject *storage_py_ledgers(StorageObject *self, PyObject *args) {
    unsigned long long at;
    int max;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTuple(args, "Ki:ledgers", &at, &max))
        return NULL;
    if (max < 1 || max > LEDGERS_MAX) {
        PyErr_Format(PyExc_ValueError, "max is not between 1 and %d", LEDGERS_MAX);
        return NULL;
    }
    int64_t *ids = PyMem_Calloc((size_t)max, sizeof *ids);
    if (ids == NULL)
        return PyErr_NoMemory();
    uint64_t position = at;
    int count = storage_ledgers(s, &position, ids, max);
    PyObject *list = PyList_New(count);
    for (int i = 0; i < count && list != NULL; i++) {
        PyObject *id = PyLong_FromLongLong(ids[i]);
        if (id == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, id);
    }
    PyMem_Free(ids);
    if (list == NULL)
        return NULL;
    return Py_BuildValue("NK", list, (unsigned long long)position);
}

static PyObject *storage_py_delete_ledger(StorageObject *self, PyObject *args) {
    long long ledger;
    storage *s = opened(self);
    if (s == NULL || !PyArg_ParseTuple(args, "L:delete_ledger", &ledger))
        return NULL;
    int status = storage_delete_ledger(s, ledger);
    if (status < 0)
        return raise_error(status);
    Py_RETURN_NONE;
}

static PyObject *storage_py_flush(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    if (s == NULL)
        return NULL;
    storage_flush(s);
    Py_RETURN_NONE;
}

static PyObject *storage_py_begin_copy(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    if (s == NULL)
        return NULL;
    uint64_t end;
    int status = storage_begin_copy(s, &end);
    if (status < 0)
        return raise_error(status);
    return Py_BuildValue("KO", (unsigned long long)end, status ? Py_True : Py_False);
}

static PyObject *storage_py_save_space(StorageObject *self, PyObject *on) {
    storage *s = opened(self);
    int is_short = s == NULL ? -1 : PyObject_IsTrue(on);
    if (is_short < 0)
        return NULL;
    storage_save_space(s, is_short);
    Py_RETURN_NONE;
}

static PyObject *storage_py_trouble(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    return s == NULL ? NULL : PyLong_FromLong(storage_trouble(s));
}

static PyObject *storage_py_stats(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    if (s == NULL)
        return NULL;
    storage_stats stats;
    storage_get_stats(s, &stats);
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
#define FIELD(name) {#name, stats.name}
        FIELD(adds),          FIELD(add_bytes),   FIELD(groups),          FIELD(syncs),
        FIELD(sync_ns_total), FIELD(sync_ns_max), FIELD(journal_bytes),   FIELD(queue_adds),
        FIELD(flushes),       FIELD(flush_bytes), FIELD(cache_bytes),     FIELD(dirty_bytes),
        FIELD(entry_logs),    FIELD(entry_log_bytes), FIELD(ledgers),     FIELD(entries),
        FIELD(cache_hits),    FIELD(disk_reads),  FIELD(damaged_entries), FIELD(replayed_entries),
        FIELD(trouble),       FIELD(waiting_groups), FIELD(disk_read_bytes),
#undef FIELD
    };
    PyObject *dict = PyDict_New();
    for (size_t i = 0; i < sizeof fields / sizeof *fields && dict != NULL; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(fields[i].value);
        if (value == NULL || PyDict_SetItemString(dict, fields[i].name, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

/* Returns a tuple of the sum in nanoseconds and the counts as bytes, 64 bits each. */
static PyObject *latency_tuple(const latency_counts *l) {
    return Py_BuildValue("Ky#", (unsigned long long)l->sum_ns, (const char *)l->counts,
                         (Py_ssize_t)sizeof l->counts);
}

static PyObject *storage_py_latencies(StorageObject *self, PyObject *unused) {
    (void)unused;
    storage *s = opened(self);
    if (s == NULL)
        return NULL;
    storage_latencies *all = malloc(sizeof *all);
    if (all == NULL)
        return PyErr_NoMemory();
    storage_get_latencies(s, all);
    PyObject *dict = Py_BuildValue("{sNsNsNsN}", "add", latency_tuple(&all->add), "sync",
                                   latency_tuple(&all->sync), "read", latency_tuple(&all->read),
                                   "failed_read", latency_tuple(&all->failed_read));
    free(all);
    return dict;
}

static PyObject *get_durable(StorageObject *self, void *unused) {
    (void)unused;
    storage *s = opened(self);
    return s == NULL ? NULL : PyLong_FromUnsignedLongLong(storage_durable_sequence(s));
}

static PyObject *get_failure(StorageObject *self, void *unused) {
    (void)unused;
    storage *s = opened(self);
    return s == NULL ? NULL : PyLong_FromLong(storage_failure(s));
}

static PyObject *get_event_fd(StorageObject *self, void *unused) {
    (void)unused;
    storage *s = opened(self);
    return s == NULL ? NULL : PyLong_FromLong(storage_event_fd(s));
}

static PyObject *get_handle(StorageObject *self, void *unused) {
    (void)unused;
    return opened(self) == NULL ? NULL : Py_NewRef(self->handle);
}

static PyMethodDef storage_methods[] = {
    {"add", (PyCFunction)(void (*)(void))storage_py_add, METH_VARARGS | METH_KEYWORDS,
     "Add one entry, packaged header and data; return its sequence number."},
    {"commit", (PyCFunction)storage_py_commit, METH_NOARGS, "Hand the adds to the journal."},
    {"fence", (PyCFunction)storage_py_fence, METH_VARARGS, "Fence a ledger."},
    {"master_key", (PyCFunction)storage_py_master_key, METH_VARARGS, "Store a master key."},
    {"next_event", (PyCFunction)storage_py_next_event, METH_NOARGS,
     "Return the next (severity, message) for the operator, or None."},
    {"read", (PyCFunction)storage_py_read, METH_VARARGS, "Return entries that are in the cache."},
    {"read_submit", (PyCFunction)storage_py_read_submit, METH_VARARGS,
     "Request entries from the read thread."},
    {"read_completions", (PyCFunction)storage_py_read_completions, METH_NOARGS,
     "Return completed reads as (tag, entries or negative error)."},
    {"last_entry", (PyCFunction)storage_py_last_entry, METH_VARARGS,
     "Return the highest entry id, or -1."},
    {"is_fenced", (PyCFunction)storage_py_is_fenced, METH_VARARGS,
     "Return True if the ledger is fenced."},
    {"ledgers", (PyCFunction)storage_py_ledgers, METH_VARARGS,
     "Return a batch of ledger ids, and the position of the next batch."},
    {"delete_ledger", (PyCFunction)storage_py_delete_ledger, METH_VARARGS, "Delete a ledger."},
    {"flush", (PyCFunction)storage_py_flush, METH_NOARGS, "Request an entry log now."},
    {"begin_copy", (PyCFunction)storage_py_begin_copy, METH_NOARGS,
     "Start the flush of all entries; return the end of its logs, and if there were any entries."},
    {"save_space", (PyCFunction)storage_py_save_space, METH_O,
     "Remove spare journal files while the disk is short of space."},
    {"trouble", (PyCFunction)storage_py_trouble, METH_NOARGS,
     "Return 0, or why writes fail temporarily (-errno)."},
    {"stats", (PyCFunction)storage_py_stats, METH_NOARGS,
     "Return counters since the storage was opened."},
    {"latencies", (PyCFunction)storage_py_latencies, METH_NOARGS,
     "Return histograms of adds, syncs and reads since the storage was opened (latency.h)."},
    {"close", (PyCFunction)(void (*)(void))storage_py_close, METH_VARARGS | METH_KEYWORDS,
     "Close the storage."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef storage_properties[] = {
    {"durable_sequence", (getter)get_durable, NULL, "Adds up to this one are durable.", NULL},
    {"failure", (getter)get_failure, NULL, "0, or why the journal failed (-errno).", NULL},
    {"event_fd", (getter)get_event_fd, NULL, "Readable after a change of the storage.", NULL},
    {"_handle", (getter)get_handle, NULL, "Capsule of the storage, for Cython.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot storage_slots[] = {{Py_tp_init, storage_init},
                                      {Py_tp_new, PyType_GenericNew},
                                      {Py_tp_dealloc, storage_dealloc},
                                      {Py_tp_methods, storage_methods},
                                      {Py_tp_getset, storage_properties},
                                      {Py_tp_doc, "One bookie's journal, cache and entry logs."},
                                      {0, NULL}};

static PyType_Spec storage_spec = {.name = "pyxbroker._native.Storage",
                                   .basicsize = sizeof(StorageObject),
                                   .flags = Py_TPFLAGS_DEFAULT,
                                   .slots = storage_slots};

static PyObject *module_crc32c(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(args, "y*|I:crc32c", &data, &crc))
        return NULL;
    uint32_t result = crc32c(crc, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(result);
}

static PyObject *module_crc32c_combine(PyObject *module, PyObject *args) {
    (void)module;
    unsigned int a, b;
    unsigned long long length;
    if (!PyArg_ParseTuple(args, "IIK:crc32c_combine", &a, &b, &length))
        return NULL;
    return PyLong_FromUnsignedLong(crc32c_combine(a, b, length));
}

/* Appends (offset, bytes, ledger id, entry id) to the list. Returns 0 or -1. */
static int damage_append(PyObject *list, size_t offset, size_t bytes, int64_t ledger_id,
                         int64_t entry_id) {
    PyObject *row = Py_BuildValue("(nnLL)", (Py_ssize_t)offset, (Py_ssize_t)bytes,
                                  (long long)ledger_id, (long long)entry_id);
    int status = row == NULL ? -1 : PyList_Append(list, row);
    Py_XDECREF(row);
    return status;
}

static PyObject *module_check_records(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    unsigned long long log_id;
    if (!PyArg_ParseTuple(args, "y*K:check_records", &data, &log_id))
        return NULL;
    record_scan scan = {
        .data = data.buf, .bytes = (size_t)data.len, .seed = record_seed(log_id, 0)};
    PyObject *damaged = PyList_New(0);
    Py_ssize_t good = 0;
    record r;
    enum record_found found;
    int status = damaged == NULL ? -1 : 0;
    while (status == 0 && (found = record_scan_next(&scan, &r)) != RECORD_NONE) {
        size_t lost = scan.at - scan.skipped_bytes;
        if (found == RECORD_GOOD)
            good++;
        else if (found == RECORD_DAMAGED)
            status = damage_append(damaged, scan.at - record_bytes(r.length),
                                   record_bytes(r.length), r.ledger_id, r.entry_id);
        else if (!all_zero(scan.data + lost, scan.skipped_bytes))
            status = damage_append(damaged, lost, scan.skipped_bytes, -1, -1);
    }
    PyBuffer_Release(&data);
    PyObject *result = status == 0 ? Py_BuildValue("nO", good, damaged) : NULL;
    Py_XDECREF(damaged);
    return result;
}

static PyMethodDef module_methods[] = {
    {"check_records", module_check_records, METH_VARARGS,
     "Check the checksums of an entry log's records; return their number and those damaged."},
    {"crc32c", module_crc32c, METH_VARARGS, "Return the CRC-32C of data, continuing from crc."},
    {"crc32c_combine", module_crc32c_combine, METH_VARARGS,
     "Return the CRC-32C of A followed by B, from both and B's length in bytes."},
    {NULL, NULL, 0, NULL}};

static native_api api = {.crc32c = crc32c,
                         .crc32c_combine = crc32c_combine,
                         .digest_prepare = digest_prepare,
                         .digest_write = digest_write,
                         .digest_check = digest_check,
                         .add = storage_add,
                         .commit = storage_commit,
                         .durable_sequence = storage_durable_sequence,
                         .failure = storage_failure,
                         .read_cached = storage_read_cached,
                         .read_submit = storage_read_submit,
                         .read_completions = storage_read_completions,
                         .unpin = storage_unpin};

static int module_add(PyObject *module, const char *name, PyObject *value) {
    int status = value == NULL ? -1 : PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return status;
}

static int module_exec(PyObject *module) {
    if (module_add(module, "Storage", PyType_FromSpec(&storage_spec)) < 0 ||
        module_add(module, "DiskFaults", disk_faults_type()) < 0 ||
        module_add(module, "_c_api", PyCapsule_New(&api, NATIVE_API_CAPSULE, NULL)) < 0 ||
        module_add(module, "crc32c_variant", PyUnicode_FromString(crc32c_variant())) < 0)
        return -1;
    const struct {
        const char *name;
        int value;
    } constants[] = {{"NO_LEDGER", STORAGE_NO_LEDGER}, {"NO_ENTRY", STORAGE_NO_ENTRY},
                     {"DAMAGED", STORAGE_DAMAGED},     {"FULL", STORAGE_FULL},
                     {"FENCED", STORAGE_FENCED},       {"FAILED", STORAGE_FAILED},
                     {"ADD_RECOVERY", STORAGE_ADD_RECOVERY}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                        .m_name = "pyxbroker._native",
                                        .m_doc = "The C storage of the bookie.",
                                        .m_methods = module_methods,
                                        .m_slots = module_slots};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&module_definition);
}
