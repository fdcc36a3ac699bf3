"""What makes several brokers one cluster: its metadata."""
