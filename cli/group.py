"""The command group: names and one-line helps here, modules loaded when a command is called or asked for
help."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

COMMANDS = {
    "inspect": "What is in a model file, and what an estimate will ask for.",
    "estimate": "What models need on GPUs: time, compute and memory, per model and per kernel.",
    "llm": "How fast a language model answers, how many requests it carries, and whether it fits.",
    "choose": "Which GPU carries a load within an objective for the least money.",
    "diff": "What changed between two models or tables; fails where a limit is passed.",
    "report": "Draw a saved table, plan, simulation or comparison as one HTML page.",
    "schedule": "Place models on GPUs by what a requirement table says they need.",
    "simulate": "Serve a plan under real arrivals, without a cluster: goodput, latency, use.",
    "compare": "Compare placement policies over workloads, clusters and objectives.",
    "merge": "Merge models that share a GPU and weights into one ONNX file.",
    "lengths": "Serve requests of many lengths by runtimes of fixed lengths (Arlo), simulated.",
    "demo": "Write ResNet-50 as an ONNX file and estimate it.",
    "init": "Write a commented workload, cluster, GPU file or comparison to begin with.",
    "schema": "JSON Schemas of every kind of document.",
    "gpus": "What is known of each GPU, and from where.",
    "doctor": "What this machine can do: GPU, driver, profilers, runtimes, bundles, operators.",
    "evaluate": "Compare your own measurements with estimates; fit this host.",
    "export": "Write a plan or table for HAMi, KAI, Volcano, MIG, MPS, Ray Serve, Triton, KServe.",
    "profile": "Measure a GPU: plan a sweep, run it, build a kernel dataset.",
    "train": "Train an estimator bundle from kernel datasets.",
}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class CliSession:
    """Hold what one run of the program was told besides its command."""

    debug: bool = False


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(CliSession).debug = True


def debug_option(function: F) -> F:
    """Give a command ``--debug``, accepted before and after its name."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_debug,
        help="Show the traceback of an error.",
    )(function)


class LazyGroup(click.Group):
    """Group commands that are imported on use: the help of the group imports none of them.

    ``modules``: a line on each command, by its name, in the order in which a newcomer needs them. The command ``NAME``
    is called ``command`` in ``cli/<prefix><NAME>.py``.
    """

    def __init__(self, *, modules: Mapping[str, str], prefix: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self._modules = modules
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of help."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name`` and return its command; None for an unknown name."""
        if cmd_name not in self._modules:
            return None
        # Imported by name: pandas and onnx are loaded by the command that needs them alone.
        module = importlib.import_module(f"gkestimator.cli.{self._prefix}{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._modules.items()))


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from gkestimator import __version__

        click.echo(f"gkest {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, modules=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
)
@debug_option
def gkest() -> None:
    """Says what an ONNX model will need on a GPU (compute, memory, time), without running it."""
