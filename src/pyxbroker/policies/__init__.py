"""What governs a namespace and its topics, and who is told when it changes."""
