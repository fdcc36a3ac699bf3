"""Times in the format of Pulsar's JSON."""

from __future__ import annotations

from datetime import datetime, timezone


def iso_ms(time_ms: int) -> str:
    """Format a time in ms since 1970 like Java, with only the digits of the second that it needs.

    A time outside of the calendar, which a client may have set, is returned as a number.
    """
    seconds, ms = divmod(time_ms, 1000)
    try:
        whole = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return f"{whole}{f'.{ms:03}'.rstrip('0') if ms else ''}Z"
