/* module.h - what the two files of pyxbroker._native that know Python share. */
#ifndef PYXBROKER_MODULE_H
#define PYXBROKER_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "disk.h"

/* A new reference to the class DiskFaults, or NULL with an exception. */
PyObject *disk_faults_type(void);

/* The table of a DiskFaults object, alive as long as the object; NULL with an exception. */
const disk_calls *disk_faults_calls(PyObject *object);

#endif
