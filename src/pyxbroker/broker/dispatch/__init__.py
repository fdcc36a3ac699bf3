"""Dispatchers: which consumer gets which entry, and when the next ones are read."""
