"""Topics, and who is attached to them: producers, subscriptions, consumers."""
