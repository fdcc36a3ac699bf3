"""Topics: loading, publishing, policies, and the producers that are attached to them."""
