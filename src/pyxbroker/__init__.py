"""A message broker that speaks Apache Pulsar's protocols."""

__version__ = "0.1.0"
