"""Lines of /metrics: one metric of many topics, built without an object per line."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, strlen

cdef extern from "Python.h":
    int Py_DTSF_ADD_DOT_0
    char *PyOS_double_to_string(double value, char format, int precision, int flags,
                                int *type) except NULL
    bint PyFloat_CheckExact(object value)
    bint PyLong_CheckExact(object value)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    double PyFloat_AS_DOUBLE(object value)

cdef enum:
    NUMBER_BYTES_MAX = 40           # of a float, or of an integer of about 128 bits


cdef Py_ssize_t _put_integer(char *at, long long value) noexcept:
    cdef char digits[24]
    cdef int count = 0
    cdef Py_ssize_t size = 0
    cdef uint64_t rest = <uint64_t>value if value >= 0 else 0 - <uint64_t>value
    if value < 0:
        at[0] = c'-'
        size = 1
    while True:
        digits[count] = <char>(c'0' + rest % 10)
        count += 1
        rest //= 10
        if rest == 0:
            break
    while count:
        count -= 1
        at[size] = digits[count]
        size += 1
    return size


cdef Py_ssize_t _put_number(char *at, object value) except -1:
    """Write a number as str() does, at most NUMBER_BYTES_MAX bytes; return its size."""
    cdef int overflow
    cdef long long integer
    cdef bytes digits
    cdef char *text
    cdef Py_ssize_t size
    if PyLong_CheckExact(value):
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            return _put_integer(at, integer)
        digits = b"%d" % value
        size = PyBytes_GET_SIZE(digits)
        if size > NUMBER_BYTES_MAX:
            raise OverflowError("an integer of %d digits is too long for a metric" % size)
        memcpy(at, PyBytes_AS_STRING(digits), <size_t>size)
        return size
    if not PyFloat_CheckExact(value):
        raise TypeError("%r is not a number" % (value,))
    if PyFloat_AS_DOUBLE(value) == 0.0:
        memcpy(at, b"0.0", 3)
        return 3
    text = PyOS_double_to_string(PyFloat_AS_DOUBLE(value), c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
    size = <Py_ssize_t>strlen(text)
    memcpy(at, text, <size_t>size)
    PyMem_Free(text)
    return size


def lines(bytes name not None, tuple labels not None, tuple rows not None, Py_ssize_t index):
    """Return one line per row: `name`, the row's label, and its number at `index`.

    A row is a tuple of integers and floats. Raise OverflowError for an integer of more than 40
    digits, TypeError for other types, and IndexError for a row that is too short.
    """
    cdef Py_ssize_t count = len(rows)
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(name)
    cdef Py_ssize_t size = count * (name_size + NUMBER_BYTES_MAX + 1)
    cdef Py_ssize_t i, label_size
    cdef bytes label, text
    cdef tuple row
    cdef char *start
    cdef char *at
    if len(labels) != count:
        raise ValueError("%d labels for %d rows" % (len(labels), count))
    for i in range(count):
        label = labels[i]
        size += PyBytes_GET_SIZE(label)
    text = PyBytes_FromStringAndSize(NULL, size)
    start = at = PyBytes_AS_STRING(text)
    for i in range(count):
        label = labels[i]
        row = rows[i]
        if not 0 <= index < len(row):
            raise IndexError(index)
        label_size = PyBytes_GET_SIZE(label)
        memcpy(at, PyBytes_AS_STRING(name), <size_t>name_size)
        at += name_size
        memcpy(at, PyBytes_AS_STRING(label), <size_t>label_size)
        at += label_size
        at += _put_number(at, row[index])
        at[0] = c'\n'
        at += 1
    return text[:at - start]
