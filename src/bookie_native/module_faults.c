/* module_faults.c - DiskFaults: disk calls with injected faults, for tests written in Python. */
#include "module.h"

#include "disk_faults.h"

typedef struct {
    PyObject_HEAD
    disk_faults faults;
    int opened;
} DiskFaultsObject;

static int faults_init(DiskFaultsObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":DiskFaults", names))
        return -1;
    if (!self->opened)
        disk_faults_open(&self->faults);
    self->opened = 1;
    return 0;
}

static void faults_dealloc(DiskFaultsObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->opened)
        disk_faults_close(&self->faults);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Returns the call's number, or -1 with an exception. */
static int parse_call(const char *name) {
    int call = fault_call_by_name(name);
    if (call < 0)
        PyErr_Format(PyExc_ValueError, "unknown disk call %s", name);
    return call;
}

static PyObject *faults_rule(DiskFaultsObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"call", "match", "after", "errno", "short_bytes", "times", NULL};
    const char *call = NULL, *match = "";
    unsigned long long after = 0, times = UINT64_MAX;
    int error = 0;
    long long short_bytes = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|s$KiLK:rule", names, &call, &match, &after,
                                     &error, &short_bytes, &times))
        return NULL;
    int number = parse_call(call);
    if (number < 0)
        return NULL;
    fault_rule rule = {.call = (enum fault_call)number,
                       .after = after,
                       .times = times,
                       .error = -error,
                       .short_bytes = short_bytes};
    if (strlen(match) >= sizeof rule.match) {
        PyErr_SetString(PyExc_ValueError, "match is too long");
        return NULL;
    }
    strcpy(rule.match, match);
    if (disk_faults_add(&self->faults, &rule) < 0) {
        PyErr_SetString(PyExc_ValueError, "too many rules");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *faults_clear(DiskFaultsObject *self, PyObject *unused) {
    (void)unused;
    disk_faults_clear(&self->faults);
    Py_RETURN_NONE;
}

static PyObject *faults_count(DiskFaultsObject *self, PyObject *args) {
    const char *call;
    if (!PyArg_ParseTuple(args, "s:count", &call))
        return NULL;
    int number = parse_call(call);
    if (number < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(
        disk_faults_count(&self->faults, (enum fault_call)number));
}

static PyMethodDef faults_methods[] = {
    {"rule", (PyCFunction)(void (*)(void))faults_rule, METH_VARARGS | METH_KEYWORDS,
     "Make calls fail or transfer less after a number of calls."},
    {"clear", (PyCFunction)faults_clear, METH_NOARGS, "Remove all rules."},
    {"count", (PyCFunction)faults_count, METH_VARARGS, "Return how often a call was made."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot faults_slots[] = {{Py_tp_init, faults_init},
                                     {Py_tp_new, PyType_GenericNew},
                                     {Py_tp_dealloc, faults_dealloc},
                                     {Py_tp_methods, faults_methods},
                                     {Py_tp_doc, "Disk calls with injected faults."},
                                     {0, NULL}};

static PyType_Spec faults_spec = {.name = "pyxbroker._native.DiskFaults",
                                  .basicsize = sizeof(DiskFaultsObject),
                                  .flags = Py_TPFLAGS_DEFAULT,
                                  .slots = faults_slots};

static PyTypeObject *faults_type;

PyObject *disk_faults_type(void) {
    if (faults_type == NULL)
        faults_type = (PyTypeObject *)PyType_FromSpec(&faults_spec);
    return Py_XNewRef((PyObject *)faults_type);
}

const disk_calls *disk_faults_calls(PyObject *object) {
    if (!PyObject_TypeCheck(object, faults_type) || !((DiskFaultsObject *)object)->opened) {
        PyErr_SetString(PyExc_TypeError, "faults is not a DiskFaults object");
        return NULL;
    }
    return &((DiskFaultsObject *)object)->faults.calls;
}
