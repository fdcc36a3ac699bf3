"""Flat Avro records as columns; see avro_columns.pxd."""
from array import array

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free

from pyxbroker.arrow_columns cimport (
    WIDTH_BITS,
    WIDTH_VARIABLE,
    add_bytes,
    add_null,
    add_truth,
    add_value,
)
from pyxbroker.integers cimport get_varint

BOOLEAN = AVRO_BOOLEAN
INT = AVRO_INT
LONG = AVRO_LONG
MILLISECONDS = AVRO_MILLISECONDS
FLOAT = AVRO_FLOAT
DOUBLE = AVRO_DOUBLE
BYTES = AVRO_BYTES
FIXED = AVRO_FIXED
ENUM = AVRO_ENUM

# Width of each kind in its column.
cdef int[AVRO_KINDS] _widths
_widths[:] = [WIDTH_BITS, 4, 8, 8, 4, 8, WIDTH_VARIABLE, WIDTH_VARIABLE, WIDTH_VARIABLE]


def width_of(int kind):
    """Return the width of columns for a kind: bytes, 0 for bytes and text, -1 for bits."""
    if not 0 <= kind < AVRO_KINDS:
        raise ValueError("%d is not a kind of Avro field" % kind)
    return _widths[kind]


class Undecodable(ValueError):
    """Raised for a payload that does not match its schema; the message names the reason."""


cdef int _get_long(const uint8_t *data, uint32_t size, uint32_t *at, int64_t *out) except -1:
    cdef uint64_t value
    if get_varint(data, size, at, &value) != 0:
        raise Undecodable("a number ends outside of the payload")
    out[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
    return 0


# Return a pointer to the next `length` bytes, and advance past them.
cdef const uint8_t *_take(const uint8_t *data, uint32_t size, uint32_t *at,
                          int64_t length) except NULL:
    cdef const uint8_t *found = data + at[0]
    if length < 0 or length > <int64_t>(size - at[0]):
        raise Undecodable("a field of %d bytes at offset %d exceeds the %d bytes of the payload"
                          % (length, at[0], size))
    at[0] += <uint32_t>length
    return found


cdef int64_t _add_number(const Step *step, const uint8_t *data, uint32_t size, uint32_t *at,
                         Column *column) except -1:
    cdef int64_t value
    cdef int32_t narrow
    _get_long(data, size, at, &value)
    if step.kind == AVRO_INT:
        narrow = <int32_t>value
        if narrow != value:
            raise Undecodable("%d does not fit into 32 bits" % value)
        if column != NULL:
            add_value(column, &narrow)
        return 4
    if step.kind == AVRO_MILLISECONDS:
        if not -9223372036854775 <= value <= 9223372036854775:
            raise Undecodable("%d milliseconds are outside of the range of timestamps" % value)
        value *= 1000
    if column != NULL:
        add_value(column, &value)
    return 8


cdef int64_t _add_symbol(const Step *step, const uint8_t *data, uint32_t size, uint32_t *at,
                         Column *column) except -1:
    cdef int64_t value
    cdef uint32_t begin
    _get_long(data, size, at, &value)
    if not 0 <= value < <int64_t>step.symbols:
        raise Undecodable("the enum has no symbol %d" % value)
    if column == NULL:
        return 0
    begin = step.symbol_ends[value - 1] if value else 0
    add_bytes(column, step.symbol_text + begin, step.symbol_ends[value] - begin)
    return step.symbol_ends[value] - begin


# Decode one field. Returns the number of bytes added to its column.
cdef int64_t _add_field(const Step *step, const uint8_t *data, uint32_t size, uint32_t *at,
                        Column *column, int64_t row) except -1:
    cdef const uint8_t *found
    cdef int64_t length
    if step.kind <= AVRO_MILLISECONDS and step.kind != AVRO_BOOLEAN:
        return _add_number(step, data, size, at, column)
    if step.kind == AVRO_ENUM:
        return _add_symbol(step, data, size, at, column)
    if step.kind == AVRO_BOOLEAN:
        found = _take(data, size, at, 1)
        if column != NULL:
            add_truth(column, row, found[0] != 0)
        return 1
    if step.kind == AVRO_BYTES:
        _get_long(data, size, at, &length)
    else:
        length = step.size if step.kind == AVRO_FIXED else _widths[step.kind]
    found = _take(data, size, at, length)
    if column == NULL:
        return 0
    if _widths[step.kind] == WIDTH_VARIABLE:
        add_bytes(column, found, <size_t>length)
    else:
        add_value(column, found)  # little-endian, like this machine
    return length


cdef class AvroProgram:
    def __cinit__(self, widths not None, steps not None):
        """Raise ValueError unless exactly one step fills each column, with values of its width.

        Each step is (kind, null_branch, column, size, symbols, default); see Step.
        """
        self.kept = []
        self.column_count = <int>len(widths)
        self.steps = <Step *>calloc(max(len(steps), 1), sizeof(Step))
        if self.steps == NULL:
            raise MemoryError("no memory for a program of %d steps" % len(steps))
        self.count = <int>len(steps)
        filled = []
        for i, (kind, null_branch, column, size, symbols, default) in enumerate(steps):
            if not -1 <= null_branch <= 1 or not -1 <= column < len(widths):
                raise ValueError("step %d of the program is invalid" % i)
            width = width_of(kind)
            if column >= 0:
                if widths[column] != width:
                    raise ValueError("column %d has a different width than its values" % column)
                filled.append(column)
            self.steps[i].kind = kind
            self.steps[i].null_branch = null_branch
            self.steps[i].column = column
            self.steps[i].size = size
            self._keep(&self.steps[i], symbols, default)
        if sorted(filled) != list(range(len(widths))):
            raise ValueError("the program fills the columns %s of %d" % (filled, len(widths)))

    def __dealloc__(self):
        free(self.steps)

    cdef int _keep(self, Step *step, tuple symbols, bytes default) except -1:
        cdef bytes text, ends
        cdef const char *start
        if symbols is not None:
            text = b"".join(symbols)
            bounds = array("I")
            at = 0
            for each in symbols:
                at += len(each)
                bounds.append(at)
            ends = bounds.tobytes()
            self.kept += [text, ends]
            step.symbols = <uint32_t>len(symbols)
            start = text
            step.symbol_text = <const uint8_t *>start
            start = ends
            step.symbol_ends = <const uint32_t *>start
        if default is not None:
            self.kept.append(default)
            start = default
            step.default_value = <const uint8_t *>start
            step.default_size = <uint32_t>len(default)
        return 0

    cdef int64_t decode(self, const uint8_t *data, uint32_t size, Column *columns,
                        int64_t row) except -1:
        cdef uint32_t at = 0
        cdef int64_t bytes_added = 0
        cdef int i
        for i in range(self.count):
            if self.steps[i].default_value == NULL:
                bytes_added += self._step(&self.steps[i], data, size, &at, columns, row)
            else:
                bytes_added += self._add_default(&self.steps[i], columns, row)
        return bytes_added

    cdef int64_t _add_default(self, Step *step, Column *columns, int64_t row) except -1:
        cdef uint32_t at = 0
        return self._step(step, step.default_value, step.default_size, &at, columns, row)

    cdef int64_t _step(self, const Step *step, const uint8_t *data, uint32_t size, uint32_t *at,
                       Column *columns, int64_t row) except -1:
        cdef Column *column = NULL if step.column < 0 else &columns[step.column]
        cdef int64_t branch
        if step.null_branch >= 0:
            _get_long(data, size, at, &branch)
            if not 0 <= branch <= 1:
                raise Undecodable("a union of two types has no branch %d" % branch)
            if branch == step.null_branch:
                if column != NULL:
                    add_null(column, row)
                return 4
        return _add_field(step, data, size, at, column, row)
