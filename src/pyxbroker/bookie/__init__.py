"""One storage node: what it keeps on disk and how it is asked for it."""
