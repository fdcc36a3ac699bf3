"""Compaction of topics, and the view of a topic that it leaves."""
