"""Say what a command has to say: its result to stdout or a file, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from gkestimator.cli.group import CliSession
from gkestimator.core.errors import GkestimatorError
from gkestimator.tables import write_bytes


def _quiet() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.ensure_object(CliSession).quiet


def say(lines: Iterable[object], kind: str = "") -> None:
    """Write each line to stderr, behind ``gkest: KIND:`` where a kind (error, note, warning) is named.

    Under ``--quiet`` errors alone are said.
    """
    if kind != "error" and _quiet():
        return
    for line in lines:
        click.echo(f"gkest: {kind}: {line}" if kind else str(line), err=True)


def say_written(*paths: object) -> None:
    """Say which files were written, in one line."""
    say([f"gkest: wrote {', '.join(map(str, paths))}"])


def to_stdout(data: bytes) -> None:
    """Write bytes to stdout as they are: UTF-8 whatever the locale."""
    # print would encode by the locale, and end lines by the system's.
    stream = sys.stdout.buffer
    stream.write(data)
    stream.flush()


def deliver(data: bytes, output: Path | None) -> None:
    """Write a result to ``output``, wholly or not at all, or to stdout where None. Raises OutputError."""
    if output is None:
        to_stdout(data)
    else:
        write_bytes(output, data)
        say_written(output)


def write_beside(flag: str, path: Path | None, make: Callable[[], bytes]) -> bool:
    """Write what ``flag`` asked for beside the result; return False where that failed, which is said.

    The result stands then all the same.
    """
    if path is None:
        return True
    try:
        write_bytes(path, make())
    except GkestimatorError as e:
        say([f"{flag}: {e}"], "error")
        return False
    say_written(path)
    return True
