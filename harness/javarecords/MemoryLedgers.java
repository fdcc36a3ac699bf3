package org.apache.bookkeeper.client;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.util.concurrent.DefaultThreadFactory;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Versioned;

/**
 * BookKeeper's client with its ledgers in memory. It is in this package since nobody else may make
 * a LedgerHandle. Every call is answered before it returns.
 */
@SuppressWarnings("try")
public final class MemoryLedgers extends BookKeeper {
    private final Map<Long, Ledger> ledgers = new HashMap<>();
    private final Context context = new Context();
    private final BookieId bookie;
    private final long first;

    /** first: the id of the first ledger that is made; all are of one bookie. */
    public MemoryLedgers(long first, String bookie) {
        this.first = first;
        this.bookie = BookieId.parse(bookie);
    }

    /** A ledger that is there already. */
    public void add(long id, LedgerMetadata metadata, List<byte[]> entries) throws Exception {
        Ledger ledger = new Ledger(context, id, metadata);
        ledger.entries.addAll(entries);
        ledgers.put(id, ledger);
    }

    public LedgerMetadata metadataOf(long id) {
        return ledgers.get(id).getLedgerMetadata();
    }

    public List<byte[]> entriesOf(long id) {
        return ledgers.get(id).entries;
    }

    @Override
    public void asyncCreateLedger(
            int ensemble,
            int writeQuorum,
            int ackQuorum,
            DigestType digest,
            byte[] password,
            AsyncCallback.CreateCallback callback,
            Object given,
            Map<String, byte[]> custom) {
        long id = first + ledgers.size();
        LedgerMetadata metadata =
                LedgerMetadataBuilder.create()
                        .withId(id)
                        .withEnsembleSize(ensemble)
                        .withWriteQuorumSize(writeQuorum)
                        .withAckQuorumSize(ackQuorum)
                        .withDigestType(digest.toApiDigestType())
                        .withPassword(password)
                        .withCustomMetadata(custom)
                        .withCreationTime(System.currentTimeMillis())
                        .storingCreationTime(true)
                        .newEnsembleEntry(0, Collections.nCopies(ensemble, bookie))
                        .build();
        try {
            add(id, metadata, List.of());
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        callback.createComplete(BKException.Code.OK, ledgers.get(id), given);
    }

    @Override
    public void asyncOpenLedger(
            long id,
            DigestType digest,
            byte[] password,
            AsyncCallback.OpenCallback callback,
            Object given,
            boolean followsMetadata) {
        Ledger ledger = ledgers.get(id);
        int code = BKException.Code.OK;
        if (ledger == null) {
            code = BKException.Code.NoSuchLedgerExistsException;
        } else if (!Arrays.equals(password, ledger.getLedgerMetadata().getPassword())) {
            code = BKException.Code.UnauthorizedAccessException;
        }
        callback.openComplete(code, code == BKException.Code.OK ? ledger : null, given);
    }

    @SuppressWarnings("try")
    private static final class Ledger extends LedgerHandle {
        private final List<byte[]> entries = new ArrayList<>();

        Ledger(ClientContext context, long id, LedgerMetadata metadata)
                throws GeneralSecurityException {
            super(
                    context,
                    id,
                    new Versioned<>(metadata, new LongVersion(0)),
                    DigestType.fromApiDigestType(metadata.getDigestType()),
                    metadata.getPassword(),
                    WriteFlag.NONE);
        }

        @Override
        public long getLastAddConfirmed() {
            return entries.size() - 1;
        }

        @Override
        public long getLength() {
            return entries.stream().mapToLong(each -> each.length).sum();
        }

        @Override
        public void asyncAddEntry(ByteBuf data, AsyncCallback.AddCallback callback, Object given) {
            byte[] copy = new byte[data.readableBytes()];
            data.readBytes(copy);
            data.release();
            entries.add(copy);
            callback.addComplete(BKException.Code.OK, this, entries.size() - 1, given);
        }

        @Override
        public void asyncReadEntries(
                long first, long last, AsyncCallback.ReadCallback callback, Object given) {
            if (first > last || last >= entries.size()) {
                callback.readComplete(BKException.Code.ReadException, this, null, given);
                return;
            }
            List<LedgerEntry> found = new ArrayList<>();
            for (long id = first; id <= last; id++) {
                byte[] data = entries.get((int) id);
                ByteBuf buffer = Unpooled.copiedBuffer(data);
                found.add(
                        new LedgerEntry(
                                LedgerEntryImpl.create(getId(), id, data.length, buffer)));
            }
            callback.readComplete(
                    BKException.Code.OK, this, Collections.enumeration(found), given);
        }

        @Override
        public void asyncClose(AsyncCallback.CloseCallback callback, Object given) {
            LedgerMetadata closed =
                    LedgerMetadataBuilder.from(getLedgerMetadata())
                            .withClosedState()
                            .withLastEntryId(getLastAddConfirmed())
                            .withLength(getLength())
                            .build();
            setLedgerMetadata(
                    getVersionedLedgerMetadata(), new Versioned<>(closed, new LongVersion(1)));
            callback.closeComplete(BKException.Code.OK, this, given);
        }
    }

    /** What a LedgerHandle asks for when it is made; nothing of it is used later. */
    private static final class Context implements ClientContext {
        private final OrderedExecutor workers =
                OrderedExecutor.newBuilder()
                        .numThreads(1)
                        .threadFactory(new DefaultThreadFactory("ledgers", true))
                        .build();
        private final ClientInternalConf conf = ClientInternalConf.defaultValues();
        private final BookKeeperClientStats stats =
                BookKeeperClientStats.newInstance(NullStatsLogger.INSTANCE);

        @Override
        public ClientInternalConf getConf() {
            return conf;
        }

        @Override
        public LedgerManager getLedgerManager() {
            return null;
        }

        @Override
        public BookieWatcher getBookieWatcher() {
            return null;
        }

        @Override
        public EnsemblePlacementPolicy getPlacementPolicy() {
            return null;
        }

        @Override
        public BookieClient getBookieClient() {
            return null;
        }

        @Override
        public ByteBufAllocator getByteBufAllocator() {
            return UnpooledByteBufAllocator.DEFAULT;
        }

        @Override
        public OrderedExecutor getMainWorkerPool() {
            return workers;
        }

        @Override
        public OrderedScheduler getScheduler() {
            return null;
        }

        @Override
        public BookKeeperClientStats getClientStats() {
            return stats;
        }

        @Override
        public boolean isClientClosed() {
            return false;
        }
    }
}
