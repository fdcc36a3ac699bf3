"""The settings of a process: their schema, their sources, and what they mean."""
