"""The resources of the web port, one file per group."""
