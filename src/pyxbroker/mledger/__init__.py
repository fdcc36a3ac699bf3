"""Managed ledgers: a topic's list of ledgers, and the cursors that read it."""
