"""An asyncio client of Pulsar's binary protocol and REST, for pyxbroker's own use.

This is not a public client library: applications have the official ones. Brokers talk to each
other by it, as do the command line, replication, the proxy and the Spark connector.
"""
