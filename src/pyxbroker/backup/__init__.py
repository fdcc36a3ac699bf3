"""Backups of a standalone's data: creation, verification and restore (docs/backup.md)."""
