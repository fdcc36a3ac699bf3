"""Client commands: their table, and their handlers."""
