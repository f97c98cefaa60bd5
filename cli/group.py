"""The command group: names and one-line helps here, modules loaded when a command is called or asked for
help."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS = {
    "Ask about models": {
        "inspect": "What is in a model file, and what an estimate will ask for.",
        "estimate": "What models need on GPUs: time, compute and memory, per model and per kernel.",
        "llm": "How fast a language model answers, how many requests it carries, and whether it fits.",
        "choose": "Which GPU carries a load within an objective for the least money.",
        "diff": "What changed between two models or tables; fails where a limit is passed.",
        "report": "Draw a saved table, plan, simulation or comparison as one HTML page.",
    },
    "Place and serve them": {
        "schedule": "Place models on GPUs by what a requirement table says they need.",
        "simulate": "Serve a plan under real arrivals, without a cluster: goodput, latency, use.",
        "serve": "Serve a plan for real, on Ray: over HTTP, by ONNX Runtime or emulated GPUs.",
        "compare": "Compare placement policies over workloads, clusters and objectives.",
        "merge": "Merge models that share a GPU and weights into one ONNX file.",
        "lengths": "Serve requests of many lengths by runtimes of fixed lengths (Arlo), simulated.",
        "export": "Write a plan or table for HAMi, KAI, Volcano, DRA, MIG, MPS, Ray Serve, Triton, KServe.",
    },
    "Begin, and look up": {
        "demo": "Write ResNet-50 as an ONNX file and estimate it; or a folder to try all with.",
        "init": "Write a commented workload, cluster, GPU file or comparison to begin with.",
        "schema": "JSON Schemas of every kind of document.",
        "gpus": "What is known of each GPU, and from where.",
        "doctor": "What this machine can do: GPU, driver, profilers, runtimes, bundles, operators.",
    },
    "Measure and learn": {
        "evaluate": "Compare your own measurements with estimates; fit this host.",
        "profile": "Measure a GPU: plan a sweep, run it, build a kernel dataset.",
        "train": "Train an estimator bundle from kernel datasets.",
    },
}
COMMANDS = {name: line for commands in SECTIONS.values() for name, line in commands.items()}
# Commands that stand in a folder of their own.
_FOLDERS = {"serve": "serving."}
OUTPUT = "Output"
_FIRST = ("Model", "What to ask", "How it runs")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class CliSession:
    """Hold what one run of the program was told besides its command."""

    debug: bool = False
    quiet: bool = False


def to_stderr(line: str) -> None:
    """Write a line to stderr; where that cannot be written nobody can be told, and the result counts all the same."""
    try:
        click.echo(line, err=True)
    except OSError:
        drop_unwritten(sys.stderr)


def drop_unwritten(stream: TextIO) -> None:
    """Let what is left in the buffer of ``stream`` go nowhere: Python would exit with 120 for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and param.name:
        setattr(ctx.ensure_object(CliSession), param.name, True)


def _session_options() -> list[click.Parameter]:
    """Return ``--quiet`` and ``--debug``, which are accepted before and after a command's name."""
    words = {
        "--quiet": "Say nothing besides the result and errors.",
        "--debug": "Show the traceback of an error.",
    }
    return [
        click.Option([flag], is_flag=True, expose_value=False, is_eager=True, callback=_remember, help=help)
        for flag, help in words.items()
    ]


def section(title: str) -> Callable[[F], F]:
    """Return a decorator that puts the options below it under ``title`` in the help, but for those with a title."""

    def decorate(function: F) -> F:
        for param in getattr(function, "__click_params__", ()):
            vars(param).setdefault("section", title)
        return function

    return decorate


class DescribedCommand(click.Command):
    """Show options by section and examples in the help; fit text tables to the terminal that they are written to."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        settings["params"] = [*(settings.get("params") or ()), *_session_options()]
        super().__init__(*args, **settings)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those without a section of their own among those of the output."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in _FIRST}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(vars(param).get("section", OUTPUT), []).append(record)
        rest = sections.pop(OUTPUT)
        titled = {title: records for title, records in sections.items() if records}
        titled[OUTPUT if titled else "Options"] = rest
        for title, records in titled.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, a line each, as they are typed."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a table for the terminal is as wide as it, one for a file or a pipe always the same."""
        if not sys.stdout.isatty():
            return super().invoke(ctx)
        # Here, for help is shown without them.
        import shutil

        from gkestimator.tables.layout import TERMINAL_COLUMNS

        to_file = ctx.params.get("output") is not None
        token = TERMINAL_COLUMNS.set(None if to_file else shutil.get_terminal_size().columns)
        try:
            return super().invoke(ctx)
        finally:
            TERMINAL_COLUMNS.reset(token)


def gkest_command(
    name: str, *examples: str, cls: type[DescribedCommand] = DescribedCommand, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function; ``examples`` close its help."""
    return click.command(name=name, cls=cls, examples=examples, **settings)


class LazyGroup(DescribedCommand, click.Group):
    """Group commands that are imported on use: neither the help of the group nor completion imports any of them.

    ``sections``: a line on each command, by title and name, in the order in which a newcomer needs them. The command
    ``NAME`` is called ``command`` in ``cli/<prefix><NAME>.py``, or in the folder that ``_FOLDERS`` names.
    """

    def __init__(
        self, *, sections: Mapping[str, Mapping[str, str]], prefix: str = "", **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._sections = sections
        self._modules = {name: line for commands in sections.values() for name, line in commands.items()}
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of help."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name`` and return its command; None for an unknown name."""
        if cmd_name not in self._modules:
            return None
        # Imported by name: pandas and onnx are loaded by the command that needs them alone.
        folder = self._prefix or _FOLDERS.get(cmd_name, "")
        module = importlib.import_module(f"gkestimator.cli.{folder}{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is asked for; refuse a misspelt one with the nearest name."""
        if args[0] not in self._modules and not args[0].startswith("-") and not ctx.resilient_parsing:
            from gkestimator.core.naming import nearest_name

            ctx.fail(f"No such command {args[0]!r}{nearest_name(args[0], self._modules)}")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, without importing them, then the options."""
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))
        super().format_options(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, without importing them, and the options."""
        from click.shell_completion import CompletionItem

        begun = [name for name in self._modules if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._modules[name]) for name in begun]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it says names options as they are spelled here."""
        from gkestimator.core.options import at_command_line

        try:
            with at_command_line():
                return super().invoke(ctx)
        except KeyboardInterrupt as e:
            raise click.Abort from e  # click itself would write an empty line first


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from gkestimator import __version__

        click.echo(f"gkest {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    examples=("gkest demo", "gkest estimate model.onnx --gpu L4,H100 --batch-size 1,8"),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
)
def gkest() -> None:
    """Says what an ONNX model will need on a GPU (compute, memory, time), without running it."""
