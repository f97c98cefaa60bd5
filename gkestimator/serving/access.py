"""Who may come through the door, and what a client may hold on to there; nothing heavy is imported for it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.escaping import is_line
from gkestimator.core.records import frozen

_MOST_TOKEN_BYTES = 4096


@frozen
class DoorLimits:
    """Say what a client may hold on to.

    ``connections`` at once (fewer where the system allows fewer files); beyond, 503. ``idle_s``: a connection without a
    request is closed. ``head_s`` and ``body_s``: a request's head and body must have come by then (408). ``write_s``:
    who does not read its answer by then is cut off. ``body_bytes``: the largest body, where the signature sets no
    lower limit (413). ``waiting_bytes``: of all bodies that are being read together; beyond, 503.
    """

    connections: int = 16_384
    idle_s: float = 75.0
    head_s: float = 10.0
    body_s: float = 30.0
    write_s: float = 30.0
    body_bytes: int = 64 * 2**20
    waiting_bytes: int = 2**30


DEFAULT_LIMITS = DoorLimits()


def read_token(path: Path) -> str:
    """Return the bearer token in the file at ``path``, without the white space around it.

    Raises UsageError in one line: it cannot be read, is empty, or others than its owner and group may read it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MOST_TOKEN_BYTES + 1).decode("ascii").strip()
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: found other characters than ASCII, expected a token") from e
    except OSError as e:
        raise UsageError(f"{path}: the token cannot be read: {e.strerror or e}") from e
    if mode & stat.S_IRWXO:
        raise UsageError(f"{path}: everybody on this machine may read the token (mode {mode:03o}): chmod 600")
    if not is_line(text, _MOST_TOKEN_BYTES, least=1) or " " in text:
        raise UsageError(f"{path}: expected a token of 1 to {_MOST_TOKEN_BYTES} characters on one line")
    return text


def check_address(host: str, token: str | None) -> None:
    """Raise UsageError where strangers could come in without a token: ``host`` is no loopback address."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:
        raise UsageError(f"host {host}: {e}") from e
    addresses = [str(address[0]) for *_, address in answers]
    if token is None and not all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in addresses):
        raise UsageError(
            f"host {host}: found no token, without which the door listens on the loopback address alone (127.0.0.1)"
        )


def allowed_files() -> int:
    """Return how many files this process may hold open, after raising that to what the system lets it be raised to."""
    try:
        import resource
    except ImportError:  # no Unix: sockets are not counted as files there
        return 2**20
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return 2**20 if soft == resource.RLIM_INFINITY else soft
