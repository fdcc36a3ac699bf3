"""Dispatchers: they choose the consumer of each entry, and read the next entries."""
