"""One storage node (a bookie): its storage on disk and the calls that add and read entries."""
