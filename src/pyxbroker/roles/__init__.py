"""Composition roots: what a process of one kind is made of, started and stopped in order."""
