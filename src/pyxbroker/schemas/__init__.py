"""The schemas of topics: their types, compatibility rules and storage."""
