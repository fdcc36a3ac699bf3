# The API of pyxbroker._native for Cython modules (src/bookie_native/native_api.h, storage.h).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "native_api.h" nogil:
    const char *NATIVE_API_CAPSULE

    ctypedef struct storage:
        pass

    ctypedef struct storage_pin:
        pass

    enum digest_type:
        DIGEST_CRC32
        DIGEST_MAC
        DIGEST_CRC32C
        DIGEST_DUMMY

    enum:
        DIGEST_HEADER_BYTES_MAX

    ctypedef struct digest:
        int type
        uint32_t header_bytes

    enum storage_error:
        STORAGE_NO_LEDGER
        STORAGE_NO_ENTRY
        STORAGE_DAMAGED
        STORAGE_FULL
        STORAGE_FENCED
        STORAGE_FAILED

    enum storage_add_flags:
        STORAGE_ADD_RECOVERY
        STORAGE_ADD_HAS_CRC

    ctypedef struct entry_ref:
        int64_t entry_id
        const uint8_t *data
        uint32_t length
        uint32_t from_disk
        storage_pin *pin

    ctypedef struct read_completion:
        uint64_t tag
        int64_t count

    ctypedef struct native_api:
        uint32_t (*crc32c)(uint32_t, const uint8_t *, size_t) noexcept nogil
        uint32_t (*crc32c_combine)(uint32_t, uint32_t, uint64_t) noexcept nogil
        int (*digest_prepare)(digest *, int, const uint8_t *, size_t) noexcept nogil
        void (*digest_write)(const digest *, uint8_t *, const uint8_t *, uint32_t,
                             uint32_t) noexcept nogil
        int (*digest_check)(const digest *, const uint8_t *, uint32_t) noexcept nogil
        int64_t (*add)(storage *, const uint8_t *, uint32_t, const uint8_t *, uint32_t,
                       uint32_t, uint32_t) noexcept nogil
        void (*commit)(storage *) noexcept nogil
        uint64_t (*durable_sequence)(const storage *) noexcept nogil
        int (*failure)(const storage *) noexcept nogil
        int (*read_cached)(storage *, int64_t, int64_t, int64_t, int, uint64_t,
                           entry_ref *) noexcept nogil
        int (*read_submit)(storage *, int64_t, int64_t, int64_t, int, uint64_t, entry_ref *,
                           uint64_t) noexcept nogil
        int (*read_completions)(storage *, read_completion *, int) noexcept nogil
        void (*unpin)(entry_ref *, int) noexcept nogil
