"""Micro-benchmarks of the Cython modules: `make bench`, or `pytest --benchmark-enable bench/micro`.

Without --benchmark-enable each runs once, as a test that what is measured still works.
"""
