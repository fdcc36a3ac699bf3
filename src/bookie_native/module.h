/* module.h - declarations shared by the two Python-aware files of pyxbroker._native. */
#ifndef PYXBROKER_MODULE_H
#define PYXBROKER_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "disk.h"

/* Returns a new reference to the class DiskFaults, or NULL with an exception. */
PyObject *disk_faults_type(void);

/* Returns the table of a DiskFaults object, valid while it lives, or NULL with an exception. */
const disk_calls *disk_faults_calls(PyObject *object);

#endif
