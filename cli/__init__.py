"""The command line. Commands are modules of this package, loaded when they are called; none holds logic."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import click

from gkestimator.cli.group import CliSession, gkest
from gkestimator.core.errors import GkestimatorError, GkestimatorWarning, OutputError, one_line

__all__ = ["main", "run"]


def main() -> None:
    """Entry point of ``gkest``: runs ``sys.argv`` and exits with the status of :func:`run`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status: 0 done, 1 partly failed, 2 bad usage or input, 3 a limit of
    ``gkest diff`` passed, 130 interrupted.

    Every error is one line on stderr; ``--debug`` adds the traceback.
    """
    session = CliSession()
    stdout = sys.stdout
    warnings.showwarning = _show_warning
    try:
        status = gkest.main(list(arguments), prog_name="gkest", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message(), err=True)
        return 2
    except click.ClickException as e:
        if isinstance(e, click.UsageError) and e.ctx:
            command = e.ctx.command_path
        else:
            command = "gkest"
        return _fail(session, e, f"{e.format_message().rstrip('.')} (see {command} --help)", 2)
    except click.exceptions.Exit as e:
        return e.exit_code
    except GkestimatorError as e:
        return _fail(session, e, str(e), e.exit_code)
    except (KeyboardInterrupt, click.Abort) as e:
        return _fail(session, e, "interrupted", 130)
    except SystemExit:
        if sys.stdout is stdout:
            raise
        return 0  # click swaps stdout and leaves when the pipe is closed: the reader has what it wants
    except BrokenPipeError:
        # The reader has what it wants (`gkest ... | head`); keep Python from complaining when it flushes at
        # exit.
        _drop_unwritten()
        return 0
    except OSError as e:
        try:
            sys.stdout.flush()
        except OSError:  # what cannot be written stays in the buffer, and Python would exit with 120 for it
            _drop_unwritten()
        return _fail(session, e, str(OutputError(e)), 2)
    except Exception as e:  # noqa: BLE001 - the last net: a defect of ours must still end in one line
        text = f"a defect of gkestimator, please report it with --debug: {type(e).__name__}: {e}"
        return _fail(session, e, text, 2)
    if isinstance(status, int):
        return status
    return 0


def _drop_unwritten() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(session: CliSession, error: BaseException, text: str, status: int) -> int:
    if session.debug:
        traceback.print_exception(error)
    click.echo(f"gkest: error: {one_line(text)}", err=True)
    return status


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, GkestimatorWarning):
        click.echo(f"gkest: warning: {one_line(message)}", err=True)
