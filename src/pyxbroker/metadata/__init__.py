"""Metadata: one small interface, the stores that implement it, paths, and coordination."""
