# Flat Avro records, decoded to columns.
#
# A program is compiled from a pair of schemas. It has one step for each field of the writer's
# schema, in order, and one for each column that the writer's schema lacks. spark/avro_programs.py
# compiles it: names, defaults and type promotions are checked there.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pyxbroker.arrow_columns cimport Column

cdef enum AvroKind:
    AVRO_BOOLEAN = 0
    AVRO_INT = 1                    # also date
    AVRO_LONG = 2                   # also timestamp-micros
    AVRO_MILLISECONDS = 3           # a long; the column has microseconds
    AVRO_FLOAT = 4
    AVRO_DOUBLE = 5
    AVRO_BYTES = 6                  # also string
    AVRO_FIXED = 7
    AVRO_ENUM = 8                   # the column has the text of the symbol
    AVRO_KINDS = 9

cdef struct Step:
    int kind
    int null_branch                 # null branch of a union with null; else -1
    int column                      # -1: the field is skipped
    uint32_t size                   # of an AVRO_FIXED
    uint32_t symbols                # of an AVRO_ENUM: number of symbols
    const uint8_t *symbol_text      # concatenated text of all symbols
    const uint32_t *symbol_ends     # end offset of each symbol in symbol_text
    const uint8_t *default_value    # encoded default; NULL: the field is read
    uint32_t default_size

cdef class AvroProgram:
    cdef Step *steps
    cdef int count
    cdef list kept                  # Python objects that own the memory of the steps
    cdef readonly int column_count
    cdef int _keep(self, Step *step, tuple symbols, bytes default) except -1
    cdef int64_t _add_default(self, Step *step, Column *columns, int64_t row) except -1
    cdef int64_t _step(self, const Step *step, const uint8_t *data, uint32_t size, uint32_t *at,
                       Column *columns, int64_t row) except -1
    # Append a row to all columns. Returns the number of bytes added. After an exception the columns
    # may have different lengths.
    cdef int64_t decode(self, const uint8_t *data, uint32_t size, Column *columns,
                        int64_t row) except -1
