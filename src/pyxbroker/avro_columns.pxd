# Records of Avro that are flat, decoded to columns.
#
# A program is what a schema comes to: a step for each field of the one that wrote, in its order,
# and one for each column that this one lacks. Names, defaults and what may become what were
# compared by who made it (spark/avro_programs.py).
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyxbroker.arrow_columns cimport Column

cdef enum AvroKind:
    AVRO_BOOLEAN = 0
    AVRO_INT = 1                    # and a date
    AVRO_LONG = 2                   # and microseconds
    AVRO_MILLISECONDS = 3           # a long, told in microseconds
    AVRO_FLOAT = 4
    AVRO_DOUBLE = 5
    AVRO_BYTES = 6                  # and text
    AVRO_FIXED = 7
    AVRO_ENUM = 8                   # told as the symbol's text
    AVRO_KINDS = 9

cdef struct Step:
    int kind
    int null_branch                 # of a union with null: the branch that is null; else -1
    int column                      # -1: the field is passed over
    uint32_t size                   # of an AVRO_FIXED
    uint32_t symbols                # of an AVRO_ENUM: how many there are,
    const uint8_t *symbol_text      # all of them, one behind the other,
    const uint32_t *symbol_ends     # and where each ends
    const uint8_t *default_value    # as if it had been written; NULL: it is read
    uint32_t default_size

cdef class AvroProgram:
    cdef Step *steps
    cdef int count
    cdef list kept                  # the Python objects that steps point into
    cdef readonly int column_count
    cdef int _keep(self, Step *step, tuple symbols, bytes default) except -1
    cdef int64_t _add_default(self, Step *step, Column *columns, int64_t row) except -1
    cdef int64_t _step(self, const Step *step, const uint8_t *data, uint32_t size, uint32_t *at,
                       Column *columns, int64_t row) except -1
    # Adds a row: to each of the columns. The bytes it took in them, or an exception, and then the
    # columns are uneven.
    cdef int64_t decode(self, const uint8_t *data, uint32_t size, Column *columns,
                        int64_t row) except -1
