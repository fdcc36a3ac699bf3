"""Subscriptions of topics, their consumers, and searches in their backlogs."""
