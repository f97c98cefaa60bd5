"""The command group: names and one-line helps here, modules loaded when a command is called or asked for
help."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

COMMANDS = {
    "estimate": "What models need on GPUs: time, compute and memory, per model and per kernel.",
    "schedule": "Place models on GPUs by what a requirement table says they need.",
    "simulate": "Serve a plan under real arrivals, without a cluster: goodput, latency, use.",
    "compare": "Compare placement policies over workloads, clusters and objectives.",
    "merge": "Merge models that share a GPU and weights into one ONNX file.",
    "lengths": "Serve requests of many lengths by runtimes of fixed lengths (Arlo), simulated.",
    "demo": "Write ResNet-50 as an ONNX file and estimate it.",
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
    """What one run of the program was told besides its command."""

    debug: bool = False


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(CliSession).debug = True


def debug_option(function: F) -> F:
    """``--debug``, accepted before and after the command's name."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_debug,
        help="Show the traceback of an error.",
    )(function)


class LazyGroup(click.Group):
    """A group whose commands are imported on use: ``gkest --help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name``; its command is called ``command``."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gkestimator.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from COMMANDS alone."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from gkestimator import __version__

        click.echo(f"gkest {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
)
@debug_option
def gkest() -> None:
    """Says what an ONNX model will need on a GPU (compute, memory, time), without running it."""
