"""Reasons why a data directory cannot be served, with the file and the remedy."""

from __future__ import annotations

from pathlib import Path

WRITE_AGAIN = (
    "`pyxbroker metadata repair` restores it from its copy in the metadata, and so does"
    " `pyxbroker standalone --accept-loss` at its start"
)
START_WITHOUT = "`pyxbroker standalone --accept-loss` starts without them"


class DataError(Exception):
    """The data directory cannot be served; the message is shown to the operator."""


class NewerFormat(DataError):
    """A file was written by a later version of the program."""

    def __init__(self, place: str, version: int, known: int) -> None:
        super().__init__(
            f"{place} was written by a newer pyxbroker (format {version}; this one reads up to"
            f" {known}); use that version."
        )


class CookieMismatch(DataError):
    """The data directory belongs to another cluster."""


class DamagedCookie(DataError):
    """The cookie does not identify the owner of the data directory."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} is damaged: the owner of the entries next to it is unknown; {WRITE_AGAIN}."
        )


class CookieMissing(DataError):
    """The directory has entries but no cookie."""

    def __init__(self, directory: Path, file: Path) -> None:
        super().__init__(
            f"The cookie {file} is missing, but {directory} contains entries of topics, whose owner"
            f" is unknown without it; {WRITE_AGAIN}."
        )


class BookieMissing(DataError):
    """Metadata lists a bookie whose data does not exist."""

    def __init__(self, directory: Path, bookie_id: str) -> None:
        super().__init__(
            f"The bookie directory {directory} is missing or empty, and with it all messages of the"
            f" bookie {bookie_id} that the metadata lists; mount its disk or restore it from a"
            f" backup; {START_WITHOUT}."
        )


class DirectoryMissing(DataError):
    """The directory of the journal or of the entry logs is missing."""

    def __init__(self, kind: str, path: Path, loses: str) -> None:
        super().__init__(
            f"The {kind} directory {path} is missing, and with it {loses}; mount its disk or"
            f" restore it from a backup; {START_WITHOUT}."
        )


class MetadataMissing(DataError):
    """The embedded metadata store is missing while the bookie's data exists."""

    def __init__(self, database: Path, directory: Path, copies: Path | None) -> None:
        restore = (
            f"`pyxbroker metadata restore` rebuilds it from the copies in {copies}"
            if copies is not None
            else "restore it from a backup, or name the store that was used (--metadata)"
        )
        super().__init__(
            f"The metadata database {database} is missing, and with it all topics, subscriptions"
            f" and the lists of their messages in {directory}; {restore};"
            " `pyxbroker standalone --accept-loss` moves the other data aside and starts empty."
        )
