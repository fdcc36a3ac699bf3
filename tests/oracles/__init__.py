"""Slow, obvious decoders that the tests hold the Cython modules against."""
