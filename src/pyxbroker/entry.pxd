# Runs: the entries of one producer on their way to the disk, entries read for a dispatcher, and the
# positions of one ACK. Each is one Python object for many messages.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.native cimport digest, entry_ref

# How the entries of a ledger are packaged and checked (digest.h).
cdef class Digest:
    cdef digest spec

cdef enum:
    BLOCK_BYTES_MAX = 28            # broker entry metadata before what a client has sent

    ITEM_CHUNK = 1                  # kind of a RunItem: of a message in chunks, maybe not the last
    ITEM_UNCOUNTED = 2              # its sequence id does not count

cdef struct RunItem:
    uint64_t sequence_id
    uint64_t highest_sequence_id
    const uint8_t *data             # the payload section; valid until the bookies took it
    uint32_t length                 # bytes of data
    uint32_t crc                    # CRC32C of data
    int32_t num_messages
    int32_t kind                    # 0: a message or a batch; ITEM_...

# Entries that one producer sent in one read of its socket, in order.
cdef class EntryRun:
    cdef RunItem *items
    cdef readonly uint32_t count
    cdef uint32_t capacity
    cdef readonly uint64_t bytes    # of all data
    cdef readonly uint64_t prefixed     # of them, what prefix() has put in front
    cdef readonly uint64_t messages
    cdef public object owner        # told by on_run_added(run) or on_run_failed(run, error)
    cdef public int64_t ledger_id   # set when appended to a ledger
    cdef public int64_t first_entry_id
    cdef int64_t started_ns         # when its first entry was read, in the time of turn_now_ns
    cdef uint8_t *copied            # own copy of the data, when the run had to wait
    cdef object kept                # Python object that holds the data of a run made of bytes
    cdef int append(self, uint64_t sequence_id, uint64_t highest_sequence_id, const uint8_t *data,
                    uint32_t length, uint32_t crc, int32_t num_messages) except -1

# Entries read from one ledger, consecutive ids; pinned until the object is gone.
cdef class EntryBatch:
    cdef entry_ref *refs
    cdef readonly int count
    cdef int capacity
    cdef readonly int64_t ledger_id
    cdef uint32_t data_offset       # where the data starts behind the packaging
    cdef object reader              # keeps the storage open while entries of it are out

cdef struct AckItem:
    int64_t ledger_id
    int64_t entry_id
    int32_t batch_index             # -1: none
    int32_t batch_size
    int32_t left                    # messages of the batch still to be acknowledged, 0: all are
    uint32_t first_word             # of the run's words: the ack set of the batch,
    uint32_t word_count             # bit 1: still to be acknowledged; without zeros at the end

# The positions of one ACK command.
cdef class AckRun:
    cdef AckItem *items
    cdef readonly int count
    cdef int capacity
    cdef readonly int partial       # items of which messages are left
    cdef uint64_t *words            # of all ack sets
    cdef uint32_t words_count
    cdef uint32_t words_capacity
    # Takes an item with its ack set; fills in what the item says of it.
    cdef int append(self, AckItem *item, const int64_t *words, uint32_t count) except -1
    cdef int _append_words(self, const int64_t *words, uint32_t count) except -1
