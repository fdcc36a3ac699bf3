"""The schema of the settings, one file per section of the reference page."""
