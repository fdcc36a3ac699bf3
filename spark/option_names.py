"""Advice for options of the JVM connector and of Spark's source for Kafka.

Names are in lower case, as Spark passes them on.
"""

from __future__ import annotations

_BY_TIME = "give startingTime or endingTime"
_OWN_READER = "the source reads without a consumer to which it could apply"

INSTEAD = {
    "topic.schema.class": "there are no Java classes here; columns that are read follow the topic's"
    " schema in the registry, written columns become a schema (schemaType), and bytes without a"
    " schema are decoded by Spark's own from_avro, from_json or from_protobuf",
    "kafka.bootstrap.servers": "give service.url, as in pulsar://host:6650",
    "subscribe": "give topic, or topics for several",
    "subscribepattern": "give topicsPattern",
    "assign": "give topics; a partition is named as topic-partition-0",
    "maxentriespertrigger": "give maxRowsPerTrigger, or maxBytesPerTrigger",
    "minoffsetspertrigger": "there is no lower limit; maxRowsPerTrigger is an upper limit",
    "minpartitions": "give bytesPerTask together with admin.url",
    "maxrecordsperpartition": "give bytesPerTask together with admin.url",
    "includeheaders": "the column __messageProperties is always there",
    "startingtimestamp": _BY_TIME,
    "endingtimestamp": _BY_TIME,
    "startingoffsetsbytimestamp": _BY_TIME,
    "endingoffsetsbytimestamp": _BY_TIME,
    "kafkaconsumer.polltimeoutms": "give pollTimeoutMs",
    "groupidprefix": "give subscriptionPrefix",
    "kafka.group.id": "give predefinedSubscription, or subscriptionPrefix",
    "path": "give topic, topics or topicsPattern instead of a path",
    "pulsar.client.serviceurl": "give service.url",
    "pulsar.admin.serviceurl": "give admin.url",
    "pulsar.admin.adminurl": "give admin.url",
    "pulsar.client.authparammap": "give pulsar.client.authParams, as JSON if it has several",
    "pulsar.client.authentication": "give pulsar.client.authPluginClassName and"
    " pulsar.client.authParams",
    "pulsar.reader.topicname": "give topic",
    "pulsar.reader.topicnames": "give topics",
    "pulsar.reader.startmessageid": "give startingOffsets",
    "pulsar.reader.startmessagefromrollbackdurationinsec": "give startingTime",
    "pulsar.reader.subscriptionname": "give predefinedSubscription",
    "pulsar.reader.subscriptionroleprefix": "give subscriptionPrefix",
    "pulsar.reader.readcompacted": "a range of messages is read by message ids, and compaction"
    " removes some of them; keep the latest row of each __key in Spark",
    "pulsar.reader.readername": _OWN_READER,
    "pulsar.reader.cryptokeyreader": "give pulsar.reader.defaultCryptoKeyReader, the file of a"
    " private key",
    "pulsar.reader.cryptofailureaction": "what cannot be decrypted is an error",
    "pulsar.producer.topicname": "give topic",
    "pulsar.producer.producername": "a stream's producers have generated names, on which exactly"
    " once depends, and those of a batch need none",
    "pulsar.producer.initialsequenceid": "sequence ids are derived from the batch and the row",
    "pulsar.producer.blockifqueuefull": "a task always waits while its queue is full; set its"
    " length by pulsar.producer.maxPendingMessages",
    "pulsar.producer.accessmode": "several tasks write a topic at the same time",
    "pulsar.producer.custommessagerouter": "give each row its partition in the column __topic, as"
    " topic-partition-0",
    "pulsar.producer.cryptokeyreader": "give pulsar.producer.defaultCryptoKeyReader, the file of a"
    " public key",
    "pulsar.producer.batchbuilder": "batches are always built by key",
    "pulsar.producer.autoupdatepartitions": "each task requests the number of partitions",
}
INSTEAD_OF_PREFIXES = {
    "pulsar.client.": "docs/spark.md lists those of pulsar.client. that have a meaning here.",
    "pulsar.admin.": "docs/spark.md lists those of pulsar.admin. that have a meaning here.",
    "pulsar.reader.": "docs/spark.md lists those of pulsar.reader. that have a meaning here.",
    "pulsar.producer.": "docs/spark.md lists those of pulsar.producer. that have a meaning here.",
    "kafka.": "this is not a client of Kafka; give service.url and topic.",
}
SPARKS_OWN = frozenset(("checkpointlocation", "queryname"))
"""Spark's own options of a query, which it passes on with those of a streaming sink."""
