"""The command line: `pyxbroker <command>`."""
