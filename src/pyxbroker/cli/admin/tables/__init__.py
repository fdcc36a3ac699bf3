"""The tables of the groups: one module with COMMANDS for each."""
