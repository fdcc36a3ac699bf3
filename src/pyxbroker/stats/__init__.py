"""Statistics of the broker, and their text formats."""
