"""Say what a command has to say: its result to stdout or a file, everything else to stderr."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from gkestimator.cli.group import CliSession, to_stderr
from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.escaping import printable, printable_lines, utf8
from gkestimator.core.outputs import by_suffix
from gkestimator.reporting.style import PICTURE_SUFFIXES, check_drawable
from gkestimator.tables import format_of, write_bytes


def _session() -> CliSession:
    context = click.get_current_context(silent=True)
    return CliSession() if context is None else context.ensure_object(CliSession)


def say(lines: Iterable[object], kind: str = "") -> None:
    """Write each line to stderr, behind ``gkest: KIND:`` where a kind (error, note, warning) is named.

    Under ``--quiet`` errors alone are said; ``--debug`` adds the traceback of a line that is an error.
    """
    session = _session()
    if kind != "error" and session.quiet:
        return
    for line in lines:
        if session.debug and isinstance(line, Exception):
            to_stderr(printable_lines("".join(traceback.format_exception(line))))
        shown = printable(str(line))
        to_stderr(f"gkest: {kind}: {shown}" if kind else shown)


def tell(text: object) -> None:
    """Write a result in lines to stdout; names in it come from strangers."""
    click.echo(printable_lines(str(text).removesuffix("\n")))


def say_written(*paths: object) -> None:
    """Say which files were written, in one line."""
    say([f"gkest: wrote {', '.join(map(str, paths))}"])


def to_stdout(data: bytes) -> None:
    """Write bytes to stdout as they are: UTF-8 whatever the locale. On a terminal nothing in them steers it."""
    # print would encode by the locale, and end lines by the system's.
    stream = sys.stdout.buffer
    if sys.stdout.isatty():
        data = utf8(printable_lines(data.decode(errors="surrogateescape")))
    stream.write(data)
    stream.flush()


def forms_of(form: str | None, output: Path | None, plot: Path | None) -> tuple[str, str]:
    """Return the forms of a table and of its picture, before either is made.

    Raises UsageError where one of them could not be written in the end.
    """
    form = form or ("table" if output is None else format_of(output))
    if form == "parquet" and output is None:
        raise UsageError("--format parquet needs a file to write to: expected -o FILE.parquet")
    if plot is None:
        return form, "png"
    shape = by_suffix("--plot", plot, PICTURE_SUFFIXES)
    check_drawable()
    return form, shape


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
