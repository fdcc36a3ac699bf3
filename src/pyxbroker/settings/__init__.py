"""The settings of a process: schema, sources and checks."""
