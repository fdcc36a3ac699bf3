"""Why a data directory cannot be served: one sentence each, with the file and what to do."""

from __future__ import annotations

from pathlib import Path

WRITE_AGAIN = (
    "`pyxbroker metadata repair` writes it again from its copy in the metadata, and so does"
    " `pyxbroker standalone --accept-loss` when it starts"
)
START_WITHOUT = "`pyxbroker standalone --accept-loss` starts without them"


class DataError(Exception):
    """The data directory cannot be served as it is; the message is the sentence to show."""


class NewerFormat(DataError):
    """A later version of the program wrote it."""

    def __init__(self, place: str, version: int, known: int) -> None:
        super().__init__(
            f"{place} was written by a newer pyxbroker (format {version}; this one reads up to"
            f" {known}); use that version."
        )


class CookieMismatch(DataError):
    """The data directory belongs to another cluster."""


class DamagedCookie(DataError):
    """The cookie does not say whose the data directory is."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} is damaged: nobody can tell whose the entries beside it are; {WRITE_AGAIN}."
        )


class CookieMissing(DataError):
    """There are entries, and nothing says of which bookie."""

    def __init__(self, directory: Path, file: Path) -> None:
        super().__init__(
            f"The cookie {file} is missing, yet {directory} has the entries of topics: without it"
            f" nobody can tell whose they are; {WRITE_AGAIN}."
        )


class BookieMissing(DataError):
    """Metadata has a bookie of which nothing is there."""

    def __init__(self, directory: Path, bookie_id: str) -> None:
        super().__init__(
            f"The bookie directory {directory} is missing or empty, and with it all messages of the"
            f" bookie {bookie_id} that the metadata knows; mount its disk or bring it back from a"
            f" backup; {START_WITHOUT}."
        )


class DirectoryMissing(DataError):
    """The journal's directory or that of the entry logs is gone."""

    def __init__(self, kind: str, path: Path, loses: str) -> None:
        super().__init__(
            f"The {kind} directory {path} is missing, and with it {loses}; mount its disk or bring"
            f" it back from a backup; {START_WITHOUT}."
        )


class MetadataMissing(DataError):
    """The embedded metadata store is gone while the bookie is there."""

    def __init__(self, database: Path, directory: Path, copies: Path | None) -> None:
        restore = (
            f"`pyxbroker metadata restore` makes it again from the copies in {copies}"
            if copies is not None
            else "bring it back from a backup, or name the store that was used (--metadata)"
        )
        super().__init__(
            f"The metadata database {database} is missing, and with it all topics, subscriptions"
            f" and the lists of their messages in {directory}; {restore};"
            " `pyxbroker standalone --accept-loss` sets the rest aside and starts empty."
        )
