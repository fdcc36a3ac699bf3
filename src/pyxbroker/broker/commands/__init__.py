"""The commands of clients: their table, and what the broker does for each."""
