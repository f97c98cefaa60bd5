"""What the command and its workers say to each other: one JSON object a line, behind a prefix of our own, for
libraries print whatever they like.

A worker says hello first (number 0); then it answers each request with the request's number, in order. Requests:
``prepare`` (entry, file, keep), ``run`` (entry, start_ns, seconds, least, most_seconds), ``close`` (keep).
"""

from __future__ import annotations

import json

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.type_names import Fields, Members

VERSION = 1
PREFIX = b"@@gkest-pairs "
# Bytes of a line: one that is longer is no line of ours.
MOST_LINE = 4 * 2**20
# Calls of a run that are told one by one; those after them keep the GPU busy and are not told.
MOST_CALLS = 100_000


class ProtocolError(GkestimatorError):
    """Say that a line carries our prefix and is no message."""


def encode(message: Members) -> bytes:
    """Return ``message`` as a line. Raises ProtocolError for one beyond MOST_LINE."""
    line = (
        PREFIX
        + json.dumps({"v": VERSION, **message}, separators=(",", ":"), allow_nan=False).encode()
        + b"\n"
    )
    if len(line) > MOST_LINE:
        raise ProtocolError(f"message: found {len(line):,} bytes, expected at most {MOST_LINE:,}")
    return line


def decode(line: bytes) -> Fields | None:
    """Return the message in ``line``; None for a line that is not ours. Raises ProtocolError."""
    if not line.startswith(PREFIX):
        return None
    if len(line) > MOST_LINE or not line.endswith(b"\n"):
        raise ProtocolError(f"message: found {len(line):,} bytes without an end, expected a line")
    try:
        message = json.loads(line[len(PREFIX) :])
    except (ValueError, RecursionError) as e:
        raise ProtocolError(f"message: not JSON: {e}") from e
    version = message.get("v") if isinstance(message, dict) else None
    if version != VERSION:
        raise ProtocolError(f"message: found version {version!r}, expected {VERSION}")
    number = message.get("n")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ProtocolError(f"message: found number {str(number)[:40]!r}, expected a whole number from 0")
    return dict(message)
