"""The text of our ranges (``<entry id>#<repeats>``, in our NVTX domain or with its name before a colon), and
names of kernels as they come from a file."""

from __future__ import annotations

import re

from gkestimator.core.errors import one_line
from gkestimator.profiling.captures import NVTX_DOMAIN

_MAX_NAME = 2**16
_LABEL = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,79})#([1-9][0-9]{0,8})", re.ASCII)


def looks_like_label(text: str) -> bool:
    """Return whether ``text`` would be one of ours if its domain were."""
    return _LABEL.fullmatch(text) is not None


def parse_label(text: str, *, domain: str | None) -> tuple[str, int] | None:
    """Return entry id and repeats of a range with ``text`` in ``domain`` (None: the tool has no domains, or
    the default one); None where the range is not ours."""
    prefix = f"{NVTX_DOMAIN}:"
    if text.startswith(prefix):
        text = text[len(prefix) :]
    elif domain != NVTX_DOMAIN:
        return None
    matched = _LABEL.fullmatch(text)
    if matched is None:
        return None
    return (matched[1], int(matched[2]))


def printable_name(name: str) -> str:
    """Return a kernel's name without control characters; whole up to 64 KiB (templates have some), then cut."""
    if name.isprintable() and len(name) <= _MAX_NAME:
        return name
    return one_line(name, limit=_MAX_NAME)
