"""The command line. Commands are modules of this package, loaded when they are called; none holds logic."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence

import click

from gkestimator.cli.group import CliSession, drop_unwritten, gkest, to_stderr
from gkestimator.core.errors import DefectError, GkestimatorError, GkestimatorWarning, OutputError, one_line
from gkestimator.core.escaping import printable_lines

__all__ = ["main", "run"]

_INTERRUPTED = 130


def main() -> None:
    """Entry point of ``gkest``: runs ``sys.argv`` and exits with the status of :func:`run`."""
    sys.unraisablehook = _again_where_lost
    status = run(sys.argv[1:])
    # All is said and written: Ctrl-C while Python ends would add a trace and take the status away.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status: 0 done, 1 partly failed, 2 bad usage or input, 3 a limit of
    ``gkest diff`` passed, 130 interrupted.

    Every error is one line on stderr; ``--debug`` adds the traceback.
    """
    _open_what_is_closed()
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
        return _fail(session, e, "interrupted", _INTERRUPTED)
    except SystemExit:
        if sys.stdout is stdout:
            raise
        return 0  # click swaps stdout and leaves when the pipe is closed: the reader has what it wants
    except BrokenPipeError:
        # The reader has what it wants (`gkest ... | head`); keep Python from complaining when it flushes at
        # exit.
        drop_unwritten(sys.stdout)
        return 0
    except OSError as e:
        try:
            sys.stdout.flush()
        except OSError:  # what cannot be written stays in the buffer, and Python would exit with 120 for it
            drop_unwritten(sys.stdout)
        return _fail(session, e, str(OutputError(e)), 2)
    except Exception as e:  # noqa: BLE001 - the last net: a defect of ours must still end in one line
        return _fail(session, e, f"{DefectError(e)} (--debug shows it)", 2)
    if isinstance(status, int):
        return status
    return 0


def _again_where_lost(lost: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came while an object was being destroyed, where Python shows a trace and goes on."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        import threading  # here: no command needs it to begin

        # Once this hook has ended: within it, it would be lost again.
        threading.Timer(0.02, _interrupt).start()
    else:
        sys.__unraisablehook__(lost)


def _interrupt() -> None:
    """Interrupt the main thread as Ctrl-C does, also while it sleeps or waits, where the system can."""
    import threading

    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is what an import or a class in the making turned Ctrl-C into."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _open_what_is_closed() -> None:
    """Open the null device for each standard stream that the caller closed (``gkest ... >&-``).

    Else Python has None in its place, and the next file that is opened takes its number: a library's prints would go
    into a model or a table.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - as long as the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _fail(session: CliSession, error: BaseException, text: str, status: int) -> int:
    if _is_interrupt(error):
        text, status = "interrupted", _INTERRUPTED
    if session.debug:
        to_stderr(printable_lines("".join(traceback.format_exception(error))))
    if status == _INTERRUPTED and sys.stderr.isatty():
        to_stderr("")  # the terminal has shown ^C
    to_stderr(f"gkest: error: {one_line(text)}")
    return status


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, GkestimatorWarning):
        click.echo(f"gkest: warning: {one_line(message)}", err=True)
