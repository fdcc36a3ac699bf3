"""The schemas of topics: what they are, which may follow which, and where they are kept."""
