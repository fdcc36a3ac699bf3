"""Ledgers: append-only sequences of entries on an ensemble of bookies, one writer each."""
