"""Metadata: one small interface and the stores behind it, paths, coordination of brokers."""
