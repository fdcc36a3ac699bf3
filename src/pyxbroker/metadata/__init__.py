"""Metadata: one small interface and the stores behind it, the paths, and what coordinates brokers."""
