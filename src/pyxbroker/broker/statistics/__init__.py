"""Statistics of topics, subscriptions, producers and consumers."""
