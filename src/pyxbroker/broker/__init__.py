"""The broker: topics, their producers and subscriptions, and the commands of clients."""
