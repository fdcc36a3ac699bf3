"""What makes several brokers one cluster: its metadata, the ownership of bundles, lookup, load."""
