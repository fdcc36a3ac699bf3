"""Composition roots: the parts of each kind of process, and the order of their start and stop."""
