"""What every room stands on: log, errors, names, files. It imports nobody of the rooms."""
