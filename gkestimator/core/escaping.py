"""Make texts from strangers safe where they are shown or written: names of files, models, tensors, GPUs and messages.

:func:`is_line` says what a name may be where a document is read. What cannot be refused, because a file already has
that name, is escaped: :func:`printable` for terminals and logs, :func:`one_line` for messages and comments,
:func:`utf8` for files of text, :func:`json_text` for JSON, :func:`markup` for HTML, :func:`markdown`, and
:func:`safe_cell` for spreadsheets. YAML, Triton's text form and metrics are written by their own libraries alone,
shell words by ``shlex.quote``. tests/house/test_writers.py finds code that writes in another way.
"""

from __future__ import annotations

import html
import re
from typing import TypeGuard

_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_SURROGATES = re.compile("[\ud800-\udfff]+")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def is_line(text: object, most: int, *, least: int = 0) -> TypeGuard[str]:
    """Return whether ``text`` is a line that can be shown as it is: of ``least`` to ``most`` characters, all printable.

    Control characters, line ends, characters of no width, those that turn the direction of writing, and bytes that are
    not UTF-8 are not printable.
    """
    return isinstance(text, str) and least <= len(text) <= most and text.isprintable()


def printable(text: str) -> str:
    r"""Return ``text`` with what :func:`is_line` refuses escaped: ``\n``, ``\u001b``, and ``\xff`` for a byte of a file
    name that is not UTF-8. A backslash that was there stays as it is, so that what could be printed never changes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds the byte 0x80 to 0xFF of a file name
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def printable_lines(text: str) -> str:
    """Return ``text`` with every line made :func:`printable`; its line ends stay."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(text: object, *, limit: int = 600) -> str:
    """Return ``text`` on one line of at most ``limit`` characters: white space becomes single spaces, the rest is made
    :func:`printable`.
    """
    flat = printable(" ".join(str(text).split()))
    if len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…"


def utf8(text: str) -> bytes:
    r"""Return ``text`` for a file; bytes that were not UTF-8 become ``\xff``."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub(lambda found: printable(found[0]), text).encode()


def json_text(text: str) -> bytes:
    r"""Return a text of JSON for a file; bytes that were not UTF-8 are read back as the text ``\xff``."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub(lambda found: printable(found[0]).replace("\\", "\\\\"), text).encode()


def markup(text: str) -> str:
    """Return ``text`` for HTML, between tags or in a quoted attribute."""
    return html.escape(printable(text))


def markdown(text: str) -> str:
    """Return ``text`` for a line of Markdown, in which it can neither begin HTML nor be a link."""
    return printable(text).replace("<", "\\<").replace("](", "]\\(")


def safe_cell(text: str) -> str:
    """Return a text for a cell of CSV that no spreadsheet computes: ``'`` stands before ``= + - @``, tab and CR."""
    if text.startswith(_FORMULA_STARTS):
        return f"'{text}"
    return text
