"""Reasons why a topic or a subscription does not move, computed from its state on demand."""
