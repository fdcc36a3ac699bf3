"""Times as Pulsar's JSON has them."""

from __future__ import annotations

from datetime import datetime, timezone


def iso_ms(time_ms: int) -> str:
    """A time in ms since 1970 as Java writes it, with as many digits of the second as it needs; the
    number itself for one that no calendar has, which a client may have set.
    """
    seconds, ms = divmod(time_ms, 1000)
    try:
        whole = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return f"{whole}{f'.{ms:03}'.rstrip('0') if ms else ''}Z"
