"""Work in steps (base/slices.py), run without an event loop."""

from __future__ import annotations

from pyxbroker.base.slices import Steps, T


def run_steps(steps: Steps[T]) -> T:
    """Run a generator of steps to its end, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
