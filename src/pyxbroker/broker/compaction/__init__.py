"""Compaction of topics, and the compacted view."""
