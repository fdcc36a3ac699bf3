"""Foundations for all packages: log, errors, names, files. It imports no other package."""
