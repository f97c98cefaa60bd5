"""Read the tokens of prompts and answers that a language model is asked for, from a trace in the order of its rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.errors import DocumentError
from gkestimator.core.files import FileWords, check_file
from gkestimator.core.texts import csv_rows
from gkestimator.documents import LanguageLoad

Lengths: TypeAlias = tuple[tuple[int, int], ...]
"""Tokens of prompt and answer of each request."""

# Columns of prompts and answers: ours, Azure's (Patel et al., Splitwise, ISCA 2024) and BurstGPT's (Wang et al., 2024).
_COLUMNS = (
    ("input_tokens", "output_tokens"),
    ("ContextTokens", "GeneratedTokens"),
    ("Request tokens", "Response tokens"),
)
_MOST_TOKENS = 100_000_000
_MOST_ROWS = 5_000_000
_MOST_BYTES = 2**30
_WORDS = FileWords(
    error=DocumentError, not_regular="found something other than a regular file, expected a trace"
)


def lengths_of(load: LanguageLoad) -> Lengths:
    """Return the lengths that ``load`` says or whose file it names. Raises DocumentError, as :func:`read_lengths`."""
    if load.lengths is not None:
        return read_lengths(Path(load.lengths))
    if load.input_tokens is None or load.output_tokens is None:
        raise DocumentError("a language model's load: found neither lengths nor both token counts")
    return ((load.input_tokens, load.output_tokens),)


def read_lengths(path: Path) -> Lengths:
    """Return the lengths in the CSV file at ``path``; an answer of 0 tokens (BurstGPT's failures) counts as 1.

    Raises DocumentError naming line and column.
    """
    check_file(path, _WORDS, _MOST_BYTES)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = filter(None, csv_rows(file))
            header = next(rows, [])
            pair = _pair(path, header)
            lengths = []
            for number, row in enumerate(rows, 2):
                cells = dict(zip(header, row, strict=False))  # a row may be cut short
                prompt, answer = (_tokens(path, number, name, cells.get(name)) for name in pair)
                lengths.append((max(prompt, 1), max(answer, 1)))
                if number > _MOST_ROWS:
                    raise DocumentError(f"{path}: found more than {_MOST_ROWS:,} requests, expected fewer")
    except (UnicodeDecodeError, csv.Error) as e:
        raise DocumentError(f"{path}: {e}, expected a CSV file of requests") from e
    if not lengths:
        raise DocumentError(f"{path}: found no request, expected at least one")
    return tuple(lengths)


def _pair(path: Path, names: list[str]) -> tuple[str, str]:
    for pair in _COLUMNS:
        if all(names.count(name) == 1 for name in pair):
            return pair
    known = "; or ".join(",".join(pair) for pair in _COLUMNS)
    raise DocumentError(f"{path}: line 1: found columns {','.join(names)[:100]}, expected {known} among them")


def _tokens(path: Path, number: int, name: str, text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > _MOST_TOKENS:
        raise DocumentError(
            f"{path}: line {number}: {name}: found {text!r:.40}, expected 0 to {_MOST_TOKENS:,} tokens"
        )
    return int(text)
