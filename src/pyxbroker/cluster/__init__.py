"""The metadata that makes several brokers one cluster."""
