"""Mutants that are known: some are no bugs, some are bugs that no test notices and why.

Each is named by its file, its function, and the line before and after: it stays when lines move.
What is equivalent does not count, another one is drawn; what is open counts as not caught.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mutants.draw import Mutant

EQUIVALENT, OPEN = "equivalent", "open"


class Kept(NamedTuple):
    kind: str
    path: str
    function: str
    before: str
    after: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.function, _one_line(self.before), _one_line(self.after)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def kept_for(mutant: Mutant, kept: Iterable[Kept]) -> Kept | None:
    key = (mutant.path, mutant.function, _one_line(mutant.before), _one_line(mutant.after))
    return next((each for each in kept if each.key == key), None)


KEPT: list[Kept] = [
    Kept(
        EQUIVALENT,
        "src/pyxbroker/bookie/space.py",
        "FileSystem.look",
        "        is_over = used_part_max < 1 and self.usage.used_part > used_part_max",
        "        is_over = used_part_max < (1 + 1) and self.usage.used_part > used_part_max",
        "no more than the whole of a disk is in use",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/statistics/statistics.py",
        "_times",
        """        created_ms = 0 if node is None else node.created_ms
        published_ms = int(topic.managed_ledger.last_added_s * 1000)""",
        """        published_ms = int(topic.managed_ledger.last_added_s * 1000)
        created_ms = 0 if node is None else node.created_ms""",
        "two times that do not know each other are read, in one turn of the loop",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/buffers.pyx",
        "OutVector.take",
        "                if taken == size:",
        "                if True or (taken == size):",
        "what one step leaves, the next one takes",
    ),
    Kept(
        OPEN,
        "src/bookie_native/storage_flush.c",
        "storage_rotate",
        "    if (s->failure_seen)",
        "    if (0 && (s->failure_seen))",
        "the group is asked for when a journal has failed, and nothing more is acknowledged then",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/delivery.pyx",
        "ConsumerState._settled",
        "        return 0",
        "        return (0 + 1)",
        "nobody looks at what it returns but for -1",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/buffers.pyx",
        "OutVector.__dealloc__",
        """        free(self.arena)
        free(self.pieces)""",
        """        free(self.pieces)
        free(self.arena)""",
        "two pieces of memory that do not know each other are freed",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/keys.pyx",
        "KeyShared._use",
        "            group.pages[at] = <KeyState *>calloc(STATES_PER_PAGE, sizeof(KeyState))",
        "            group.pages[at] = <KeyState *>calloc(sizeof(KeyState), STATES_PER_PAGE)",
        "the product is the same",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/sha1.c",
        "blocks_x86",
        """    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1b));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);""",
        """    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1b));""",
        "four numbers and a fifth behind them are stored",
    ),
    Kept(
        OPEN,
        "src/pyxbroker/buffers.pyx",
        "OutVector.send",
        "                if errno == EINTR:",
        "                if False and (errno == EINTR):",
        "a socket that never waits is not interrupted by a signal",
    ),
    Kept(
        OPEN,
        "src/bookie_native/flush.c",
        "flusher_wait",
        "    if (f->remind_ns != 0 && (ns == 0 || f->remind_ns - now < ns))",
        "    if (f->remind_ns != 0 && (ns == 0 || f->remind_ns + now < ns))",
        "who waits for room is reminded later than is due while a flush is tried again",
    ),
    Kept(
        OPEN,
        "src/bookie_native/entry_log_rebuild.c",
        "log_row_scan",
        "else if (found != RECORD_LOST && r.type == RECORD_ENTRY && r.ledger_id == row->ledger_id)",
        "else if (found != RECORD_LOST || r.type == RECORD_ENTRY && r.ledger_id == row->ledger_id)",
        "the bytes of a row have records of its own ledger alone, as its table says",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/compaction.pyx",
        "LatestMessages.__cinit__",
        """        memcpy(self.secret, start, 16)
        self.retains_keyless = retains_keyless""",
        """        self.retains_keyless = retains_keyless
        memcpy(self.secret, start, 16)""",
        "two attributes that do not know each other are set",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/compaction.pyx",
        "LatestMessages.spill",
        """                _write_all(file.fileno(), start[:sizeof(block.records)], self.file_size)
                part.spilled[part.spilled_count] = <int64_t>self.file_size""",
        """                part.spilled[part.spilled_count] = <int64_t>self.file_size
                _write_all(file.fileno(), start[:sizeof(block.records)], self.file_size)""",
        "the place counts from the next line on alone, which a write that fails does not reach",
    ),
    Kept(
        OPEN,
        "src/pyxbroker/connection.pyx",
        "Connections.mark_dirty",
        "            connection.is_dirty = True",
        "            pass",
        "a connection is looked at once more for each frame of a turn, with nothing to send then",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/bitmap.pyx",
        "EntryBitmap._grow",
        """memset(moved + before + self.size, 0,
               <size_t>(grown - self.size - before) * sizeof(Page *))""",
        """memset(moved - before + self.size, 0,
               <size_t>(grown - self.size - before) * sizeof(Page *))""",
        "a set that begins earlier grows at its front alone, and nothing is cleared behind it",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/topics/producer.py",
        "Producer._answer_in_order",
        """            self._answer(run, error)
            sends = run.count""",
        """            sends = run.count
            self._answer(run, error)""",
        "answering a run does not change how many entries it has",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/ackset.pyx",
        "LedgerBatches.__cinit__",
        """        self.ids = EntryBitmap()
        self.changed = EntryBitmap() if tracked else None""",
        """        self.changed = EntryBitmap() if tracked else None
        self.ids = EntryBitmap()""",
        "two bitmaps that do not know each other are made",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/commands/session.py",
        "Session.__init__",
        """        self.step_queue = (pace or Pace()).queue()  # of commands; another after login
        self.pending_connection: PendingConnection | None = None  # until login""",
        """        self.pending_connection: PendingConnection | None = None  # until login
        self.step_queue = (pace or Pace()).queue()  # of commands; another after login""",
        "two attributes that do not know each other are set",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/topics/upkeep.py",
        "_Walk.__init__",
        "self.count = 0",
        "self.count = (0 + 1)",
        "it is only compared with what it was before",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/topics/deduplication.py",
        "Deduplication.open.read_batches",
        """            self._forget_oldest(found)
            await asyncio.sleep(0)""",
        """            await asyncio.sleep(0)
            self._forget_oldest(found)""",
        "nobody else has what is cut here, and it is cut before it is used",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/keys.pyx",
        "KeyShared.__dealloc__",
        """        free(self.range_ends)
        free(self.range_owners)""",
        """        free(self.range_owners)
        free(self.range_ends)""",
        "two pieces of memory that do not know each other are given back",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal_files.c",
        "journal_files_take",
        """            first->next = NULL;
            pthread_cond_signal(&files->work);""",
        """            pthread_cond_signal(&files->work);
            first->next = NULL;""",
        "who is woken waits for the lock, which is held until later",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal_files.c",
        "journal_files_open",
        """    condition_open(&files->work);
    condition_open(&files->ready);""",
        """    condition_open(&files->ready);
    condition_open(&files->work);""",
        "two conditions that do not know each other are made",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal_files.c",
        "journal_files_close",
        """    pthread_cond_destroy(&files->work);
    pthread_cond_destroy(&files->ready);""",
        """    pthread_cond_destroy(&files->ready);
    pthread_cond_destroy(&files->work);""",
        "two conditions that do not know each other are destroyed",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/commands.pyx",
        "_parse_field",
        "return DECODE_OK",
        "return 0",
        "DECODE_OK is 0",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/entry_log_rebuild.c",
        "log_index_add",
        "size_t capacity = index->capacity == 0 ? 64 : index->capacity * 2;",
        "size_t capacity = index->capacity == 0 ? 64 : index->capacity * (2 + 1);",
        "it grows by another factor",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal_files.c",
        "journal_files_take",
        "first->next = NULL;",
        "(void)0;",
        "nobody follows it before it is in a list again, which sets it",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal_files.c",
        "journal_files_adopt",
        "if (fd < 0)",
        "if (fd < (0 + 1))",
        "0 is no error, and the descriptor of the standard input, so no file gets it",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/metadata/store.py",
        "MetadataStore",
        "self, path: str, value: bytes, ephemeral: bool",
        "path: str, self, value: bytes, ephemeral: bool",
        "an abstract method is not called, and those that implement it have their own names",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal.c",
        "group_header_encode",
        """    store_le32(block + 44, h->records);
    store_le64(block + 48, h->previous);""",
        """    store_le64(block + 48, h->previous);
    store_le32(block + 44, h->records);""",
        "two numbers are stored at places that do not overlap",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal.c",
        "group_header_encode",
        """    store_le64(block + 32, h->salt);
    store_le32(block + 40, h->length);""",
        """    store_le32(block + 40, h->length);
    store_le64(block + 32, h->salt);""",
        "two numbers are stored at places that do not overlap",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal.c",
        "group_header_encode",
        """    store_le64(block + 8, h->file_id);
    store_le64(block + 16, h->sequence);""",
        """    store_le64(block + 16, h->sequence);
    store_le64(block + 8, h->file_id);""",
        "two numbers are stored at places that do not overlap",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal.c",
        "journal_open",
        """    pthread_mutex_init(&j->lock, NULL);
    condition_open(&j->work);""",
        """    condition_open(&j->work);
    pthread_mutex_init(&j->lock, NULL);""",
        "a lock and a condition that do not know each other are made, and no thread runs yet",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal.c",
        "journal_close",
        """        pthread_join(j->thread, NULL);
        j->running = 0;""",
        """        j->running = 0;
        pthread_join(j->thread, NULL);""",
        "only who closes looks at whether the thread runs",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/cache.c",
        "cache_reserve",
        "        return 0;",
        "        return (0 + 1);",
        "both who call it ask whether it is an error, which is less than 0",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/entry_log.c",
        "log_header_encode",
        """    store_le64(block + 16, id);
    store_le64(block + 24, checkpoint);""",
        """    store_le64(block + 24, checkpoint);
    store_le64(block + 16, id);""",
        "two numbers are stored at places that do not overlap",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/cli/__init__.py",
        "main",
        """        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)""",
        """        sys.exit(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())""",
        "Python does not write again at its end what could not be flushed",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/storage.c",
        "storage_start",
        """    reader_open(&s->reader, &s->logs, &s->events, s->event_fd);
    flusher_open(&s->flusher, &s->logs, &s->journal, &s->files, &s->reader, &s->events,
                 s->event_fd);""",
        """    flusher_open(&s->flusher, &s->logs, &s->journal, &s->files, &s->reader, &s->events,
                 s->event_fd);
    reader_open(&s->reader, &s->logs, &s->events, s->event_fd);""",
        "no thread runs yet, and the flusher only remembers where the reader is",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/dispatch/read_trouble.py",
        "ReadTrouble.try_again",
        """        self._batch = self._batch_min
        self._loop.call_later(self._delay_s, self._turn.run, self._dispatcher.retry_read)""",
        """        self._loop.call_later(self._delay_s, self._turn.run, self._dispatcher.retry_read)
        self._batch = self._batch_min""",
        "what is called later is called after both",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/delivery.pyx",
        "ConsumerState.deliver",
        """                        taker._send(batch, i - 1, messages, words, 0, count, True)
                        taker._mark_sent()""",
        """                        taker._mark_sent()
                        taker._send(batch, i - 1, messages, words, 0, count, True)""",
        "its connection is written to at the end of the turn, after both",
    ),
    Kept(
        OPEN,
        "src/bookie_native/journal_files.c",
        "journal_files_take",
        """    pthread_mutex_lock(&files->lock);
    files->waiting = 1;""",
        """    files->waiting = 1;
    pthread_mutex_lock(&files->lock);""",
        "a data race, which only ThreadSanitizer notices: make tsan",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal_files.c",
        "journal_files_close",
        """    journal_manifest_close(&files->manifest);
    pthread_cond_destroy(&files->work);""",
        """    pthread_cond_destroy(&files->work);
    journal_manifest_close(&files->manifest);""",
        "the thread is over, and the manifest waits for nothing",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/journal_files.c",
        "journal_files_adopt",
        "if (fd < 0)",
        "if (fd <= 0)",
        "0 is no error, and the descriptor of the standard input, so no file gets it",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/compaction.pyx",
        "LatestMessages.rebuild",
        """            data = unpacked
            size = <uint32_t>len(unpacked)""",
        """            size = <uint32_t>len(unpacked)
            data = unpacked""",
        "two values are taken of the same bytes",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/keys.pyx",
        "KeyShared._is_before",
        "return _compare(&self.entries[at], entry) < 0",
        "return _compare(&self.entries[at], entry) < (0 + 1)",
        "what is equal is one position: either order is the same list",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/cli/serving.py",
        "add_options",
        """    add(
        "--broker-port",
        type=_port,
        metavar="N",
        help="Port of the binary protocol [6650]; 0: any free port.",
    )
    add(
        "--web-port",
        type=_port,
        metavar="N",
        help="Port of REST and /metrics [8080]; 0: any free port.",
    )""",
        """    add(
        "--web-port",
        type=_port,
        metavar="N",
        help="Port of REST and /metrics [8080]; 0: any free port.",
    )
    add(
        "--broker-port",
        type=_port,
        metavar="N",
        help="Port of the binary protocol [6650]; 0: any free port.",
    )""",
        "the help lists two options in another order",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/base/log_limits.py",
        "LineLimits._cause",
        """        reference = getattr(record, "fields", {}).get("reference")
        event = re.sub(_NUMBER, "#", str(record.msg))""",
        """        event = re.sub(_NUMBER, "#", str(record.msg))
        reference = getattr(record, "fields", {}).get("reference")""",
        "two values are read that do not depend on each other",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/policies/namespaces.py",
        "NamespacePolicies._refresh_all",
        """                broker = self.broker
                left = list(self._namespaces.values())""",
        """                left = list(self._namespaces.values())
                broker = self.broker""",
        "two values are read that do not depend on each other, in one turn of the loop",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/schemas/protobuf_native.py",
        "root_message",
        """    if max(data.count(each) for each in (b",", b":", b"[", b"{")) > NAMES_PER_STEP:""",
        """    if max(data.count(each) for each in (b",", b"[", b":", b"{")) > NAMES_PER_STEP:""",
        "the largest of four numbers, in whatever order",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/commands/handlers.py",
        "Handlers._check_alive",
        """            session.ping_sent = True
            connection.send_frame(replies.ping())""",
        """            connection.send_frame(replies.ping())
            session.ping_sent = True""",
        "a frame is queued, which looks at nothing of the session, in one turn of the loop",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/metric_lines.pyx",
        "lines",
        """        label_size = PyBytes_GET_SIZE(label)
        memcpy(at, PyBytes_AS_STRING(name), <size_t>name_size)""",
        """        memcpy(at, PyBytes_AS_STRING(name), <size_t>name_size)
        label_size = PyBytes_GET_SIZE(label)""",
        "a size is read and other bytes are copied, neither depends on the other",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/entry_columns.pyx",
        "EntryColumns.__dealloc__",
        """        free_column(&self.publish_time)
        free_column(&self.event_time)""",
        """        free_column(&self.event_time)
        free_column(&self.publish_time)""",
        "two pieces of memory that do not know each other are freed",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/entry.pyx",
        "AckRun.append",
        "            grown = self.capacity * 4 if self.capacity else 4",
        "            grown = self.capacity * 4 if self.capacity else (4 + 1)",
        "the first room is for five positions, not four",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/entry_columns.pyx",
        "_compare",
        "        return 1 if one.entry_id > other.entry_id else -1",
        "        return 1 if one.entry_id >= other.entry_id else -1",
        "they are not the same, which was asked before",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/bitmap.pyx",
        "EntryBitmap.encode_runs",
        """            word = max(word, self.changed_from)
            end = min(end, self.changed_to)""",
        """            end = min(end, self.changed_to)
            word = max(word, self.changed_from)""",
        "neither needs what the other says",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/avro_columns.pyx",
        "",
        "cdef int _get_long(const uint8_t *data, uint32_t size, uint32_t *at, int64_t *out)"
        " except -1:",
        "cdef int _get_long(const uint8_t *data, uint32_t size, uint32_t *at, int64_t *out)"
        " except -(1 + 1):",
        "it returns 0, or what the compiler makes and checks for an exception",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/base/log_limits.py",
        "cut_traceback",
        "        half = (len(lines) + 1) // 2",
        "        half = (len(lines) + (1 + 1)) // 2",
        "of an even number the line in the middle is the first to go, in whichever half it is",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/broker/broker_port.py",
        "BrokerPort.begin",
        "        pending.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)",
        "        pending.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, (1 + 1))",
        "any number but 0 sets the option",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/schemas/protobuf_native.py",
        "_check_imports",
        "    names = 0",
        "    names = (0 + 1)",
        "a step is over one name earlier",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/entry_columns.pyx",
        "EntryColumns.__dealloc__",
        """        free_column(&self.property_names)
        free_column(&self.property_values)""",
        """        free_column(&self.property_values)
        free_column(&self.property_names)""",
        "two pieces of memory that do not know each other are freed",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/turn_watch.pyx",
        "TurnWatch.__cinit__",
        """        self.clock = <turn_clock *>calloc(1, sizeof(turn_clock))
        self.prepare = calloc(1, HANDLE_BYTES)""",
        """        self.prepare = calloc(1, HANDLE_BYTES)
        self.clock = <turn_clock *>calloc(1, sizeof(turn_clock))""",
        "two pieces of memory that do not know each other are made",
    ),
    Kept(
        EQUIVALENT,
        "src/pyxbroker/auth/fetching.py",
        "_Answer.__init__",
        """        self.body = bytearray()
        self.is_over = False""",
        """        self.is_over = False
        self.body = bytearray()""",
        "two attributes that do not know each other are set",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/entry_log.c",
        "log_row_decode",
        """    row->last_entry = (int64_t)load_le64(at + 16);
    row->data_offset = load_le64(at + 24);""",
        """    row->data_offset = load_le64(at + 24);
    row->last_entry = (int64_t)load_le64(at + 16);""",
        "two numbers are read from places that do not overlap",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/segment.c",
        "segment_memory",
        "        mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MA"
        "P_PRIVATE | MAP_ANONYMOUS, -1, 0);",
        "        mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MA"
        "P_PRIVATE | MAP_ANONYMOUS, -(1 + 1), 0);",
        "Linux does not look at the descriptor of memory that is of no file",
    ),
    Kept(
        EQUIVALENT,
        "src/bookie_native/segment.c",
        "segment_obtain",
        """    s->next = NULL;
    atomic_store_explicit(&s->pin.count, 1, memory_order_release);""",
        """    atomic_store_explicit(&s->pin.count, 1, memory_order_release);
    s->next = NULL;""",
        "nobody else has it yet, and who gets it later gets both",
    ),
]
