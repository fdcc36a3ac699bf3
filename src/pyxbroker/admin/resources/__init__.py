"""REST resources: one file for each group of endpoints."""
