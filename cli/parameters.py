"""Make click's options of the records that declare them, and the few that many commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gkestimator.cli.group import section
from gkestimator.cli.outputs import say
from gkestimator.core.errors import UsageError
from gkestimator.core.option_kinds import File, Flag, Many, Number, Text, UnfitError, Word
from gkestimator.core.options import REQUIRED, Option, option_of, options_of
from gkestimator.estimation.request import EstimateRequest
from gkestimator.tables.csv_text import CsvOptions, safe_cells

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gkestimator.simulation.replanning.settings import Replanning

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic since click 8.5 only

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
Names = tuple[str, ...]
Paths = tuple[Path, ...]
PATH = click.Path(path_type=Path)
MODELS = click.Path()  # patterns as well as paths, hence texts; the shell completes them
SEED = click.IntRange(0, 2**63 - 1)


class _Kind(ParamType):
    """Read a text as an option's kind does, and refuse it with the words of its one check."""

    def __init__(self, option: Option[Any, Any]) -> None:
        self._option = option
        self.name = option.name

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help shows; asked there alone, for some words cost an import."""
        return self._option.kind.metavar

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that the option takes; GPU types and groups for ``--gpu``; files for a path.

        Of several separated by commas the last is completed.
        """
        from click.shell_completion import CompletionItem

        kind = self._option.kind
        before = comma = ""
        begun = incomplete
        if isinstance(kind, Many):
            if kind.commas:
                before, comma, begun = incomplete.rpartition(",")
            kind = kind.item
        if isinstance(kind, File):
            return [CompletionItem(incomplete, type="file")]
        names: tuple[str, ...] = ()
        if isinstance(kind, Word):
            names = kind.words
        elif self._option.flag == "--gpu":
            from gkestimator.hardware.gpus import ALL_GPUS, ARCHITECTURES, gpu_catalogue

            names = (*gpu_catalogue().complete_names(), ALL_GPUS, *ARCHITECTURES)
        near = [name for name in names if name.casefold().startswith(begun.casefold())]
        return [CompletionItem(f"{before}{comma}{name}") for name in near]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        kind = self._option.kind
        try:
            parsed = kind.parsed(value)
            checked = kind.checked(parsed)
        except UnfitError as e:
            self.fail(str(e), param, ctx)
        if self._option.repeat:
            return parsed
        return checked


def options_from(
    record: type, only: Collection[str] | None = None, *, but: Collection[str] = ()
) -> Callable[[F], F]:
    """Return a decorator that gives a command the options of ``record``: all, ``only`` these, or all ``but`` these."""
    chosen = [
        _titled(option, _click_option(name, option))
        for name, option in options_of(record).items()
        if option.flag is not None and name not in but and (only is None or name in only)
    ]

    def decorate(function: F) -> F:
        for decorator in reversed(chosen):
            function = decorator(function)
        return function

    return decorate


def names_option(
    flag: str, name: str, help: str, *, none: tuple[()] | None = (), required: bool = False
) -> Decorator[Any]:
    """Return a decorator for names separated by commas, read as a tuple; ``none``: where nobody says any."""
    kind = Many(item=Text(metavar="NAME"), commas=True)
    option: Option[Any, Any] = Option(none, kind, help, flag=flag, repeat=none is not None)
    return _click_option(name, option, required=required)


def _click_option(name: str, option: Option[Any, Any], **more: Any) -> Decorator[Any]:
    flag = option.flag
    default = option.default
    assert flag is not None
    if isinstance(option.kind, Flag):
        spelling = f"{flag}/--no-{flag[2:]}" if default else flag
        return click.option(
            spelling, name, is_flag=True, default=default, show_default=bool(default), help=option.help
        )
    words = f"{option.help} Repeatable." if option.repeat else option.help
    if isinstance(option.kind, Number):
        bounds = f"  [{option.kind.bounds}]"
    else:
        bounds = ""
    settings: dict[str, Any] = {
        "type": _Kind(option),
        "help": f"{words}{bounds}",
    }
    if option.repeat:
        settings |= {"multiple": True, "callback": lambda _, __, values: option.gathered(values)}
    elif default is REQUIRED:
        settings["required"] = True
    elif default is not None:
        settings |= {"default": default, "show_default": True}
    return click.option(flag, name, **(settings | more))


def _titled(option: Option[Any, Any], decorator: Decorator[Any]) -> Decorator[Any]:
    """Return ``decorator``, whose option stands under the title that its record gives it."""
    if not option.section:
        return decorator

    def decorate(function: F) -> F:
        function = decorator(function)
        # The option that was just added, not those below it, which another title may be said for.
        vars(vars(function)["__click_params__"][-1])["section"] = option.section
        return function

    return decorate


gpu_spec_option = options_from(EstimateRequest, ("gpu_specs",))
"""``--gpu-spec``, for every command that asks for GPUs by name."""


def quick_option(words: str) -> Decorator[Any]:
    """Return ``--quick``: the models of a workload, their rates and objectives, without a file."""
    help = f"Models, rates and objectives {words}. Repeatable."
    return click.option("--quick", multiple=True, metavar="MODEL:RATErps@SLOms,...", help=help)


def replan_options(command: F) -> F:
    """Add what says whether the policy runs again while a plan serves, under its own title."""
    decorators = (
        section("Planning again"),
        click.option(
            "--replan",
            type=click.Choice(["none", "usher", "gpulet"]),
            default="none",
            show_default=True,
            help="The policy runs again: as rates move (usher), or every 20 s (gpulet).",
        ),
        click.option("--cluster", type=PATH, help="With --replan: the GPUs there are (YAML)."),
        click.option("--policy", help="With --replan: who plans again; default: the plan's."),
        click.option(
            "--replan-option",
            "replan_pairs",
            multiple=True,
            metavar="NAME=VALUE",
            help="With --replan: headroom, threshold-rps, period-ms, load-ms, ...; repeatable.",
        ),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def replanning_asked(replan: str, pairs: Names, **others: object) -> Replanning | None:
    """Return how the policy runs again, None where it does not. Raises UsageError: an option (``others``, by the name
    of its parameter, None or empty where it is not given) that has no use then.
    """
    from gkestimator.placement.registry import policy_options
    from gkestimator.simulation.replanning.settings import replanning_from

    if replan != "none":
        return replanning_from(replan, policy_options(pairs, {}, option="--replan-option"))
    for name, value in (*others.items(), ("replan_option", next(iter(pairs), None))):
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} {value}: has no use with --replan none")
    return None


def form_option(
    *forms: str, help: str = "Default: by suffix of -o, else table.", **more: Any
) -> Decorator[Any]:
    """Return ``--format``, one of ``forms``; with it ``--safe-csv`` where CSV is among them."""
    decorator = click.option("--format", "form", type=click.Choice(forms), help=help, **more)
    if "csv" not in forms:
        return decorator
    return lambda function: decorator(safe_csv_option(function))


def safe_csv_option(function: F) -> F:
    """Add ``--safe-csv``: the command writes CSV as it asks, and what that changed is said in the end."""
    option = option_of(CsvOptions, "safe_csv")
    decorator: Decorator[F] = click.option(
        str(option.flag), is_flag=True, expose_value=False, callback=_ask_for_safe_csv, help=option.help
    )
    return decorator(function)


def _ask_for_safe_csv(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        changed = context.with_resource(safe_cells())
        context.call_on_close(lambda: say([changed.words()]))
