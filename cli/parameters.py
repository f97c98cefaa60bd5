"""Parameter types of the commands: lists, ``name=value`` pairs and the options that estimate and demo
share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gkestimator.errors import UsageError
from gkestimator.runtime_traits import runtime_words
from gkestimator.tables import FORMATS

__all__ = ["DIM", "EACH", "NUMBERS", "WHOLE_NUMBERS", "Names", "dims_of", "estimate_options"]

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic since click 8.5 only

F = TypeVar("F", bound=Callable[..., Any])
MAX_ITEMS = 1024


def _items(param: _ParamType, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        param.fail(f"found {text!r}, expected values separated by commas")
    if len(items) > MAX_ITEMS:
        param.fail(f"found {len(items)} values, expected at most {MAX_ITEMS}")
    return items


class _WholeNumbers(_ParamType):
    """``1,4,8``: whole numbers from 1, repeats dropped unless ``repeats``."""

    name = "N,N,..."

    def __init__(self, *, repeats: bool = False) -> None:
        self._repeats = repeats

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers = []
        for item in _items(self, value):
            if not (item.isascii() and item.isdigit() and len(item) <= 18 and int(item) >= 1):
                self.fail(
                    f"found {item[:40]!r}, expected whole numbers from 1, separated by commas", param, ctx
                )
            numbers.append(int(item))
        return tuple(numbers if self._repeats else dict.fromkeys(numbers))


class _Numbers(_ParamType):
    """``20,50,100``: finite numbers."""

    name = "X,X,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        numbers = []
        for item in _items(self, value):
            try:
                number = float(item)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                self.fail(f"found {item[:40]!r}, expected numbers separated by commas", param, ctx)
            numbers.append(number)
        return tuple(dict.fromkeys(numbers))


class Names(_ParamType):
    """``V100,H100``: names separated by commas."""

    name = "NAME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names, repeats dropped."""
        return value if isinstance(value, tuple) else tuple(dict.fromkeys(_items(self, value)))


class _Dim(_ParamType):
    """``seq=128``."""

    name = "NAME=N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, equals, number = value.rpartition("=")
        name, number = name.strip(), number.strip()
        if not (equals and name and number.isascii() and number.isdigit() and len(number) <= 18):
            self.fail(f"found {value[:60]!r}, expected name=number, such as seq=128", param, ctx)
        return name, int(number)


WHOLE_NUMBERS, NUMBERS, DIM = _WholeNumbers(), _Numbers(), _Dim()
EACH = _WholeNumbers(repeats=True)
"""One number for each of several things, in their order."""
_PATH = click.Path(path_type=Path)


def _flat(_: click.Context, __: click.Parameter, value: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in value for name in names))


_OPTIONS = (
    click.option("--gpu", "gpus", type=Names(), multiple=True, callback=_flat, help="GPU type; repeatable."),
    click.option(
        "--batch-size", "batch_sizes", type=WHOLE_NUMBERS, help="Batch sizes; default: as exported."
    ),
    click.option(
        "--dim", "dims", type=DIM, multiple=True, help="Number for a symbolic dimension; repeatable."
    ),
    click.option("--batch-dim", metavar="NAME", help="Name of the batch dimension where it is not found."),
    click.option("--runtime", default="torch", show_default=True, help=f"{runtime_words()}."),
    click.option(
        "--dtype", default="auto", show_default=True, help="fp32, tf32, fp16, bf16, amp, int8 or auto."
    ),
    click.option(
        "--sm-share", "sm_shares", type=NUMBERS, default="100", help="Percent of the SMs (as with MPS)."
    ),
    click.option("--attention", type=click.Choice(["fused", "eager"]), help="How attention is launched."),
    click.option(
        "--unfold-batchnorm/--no-unfold-batchnorm",
        default=True,
        show_default=True,
        help="torch: run BatchNorms that the exporter folded into convolutions.",
    ),
    click.option("--streams", type=click.IntRange(1, 1024), help="CUDA streams; default: the runtime's."),
    click.option(
        "--trip-count", type=click.IntRange(0), help="Iterations of loops whose count is not known."
    ),
    click.option("--host-overhead-us", type=float, help="Host time per framework call."),
    click.option("--context-mib", type=float, help="Memory of the CUDA context and library handles."),
    click.option("--host", type=_PATH, help="This host's figures (TOML of evaluate --write-host)."),
    click.option("--include-copy", is_flag=True, help="Add moving inputs and outputs to the latency."),
    click.option("--slo-ms", type=float, help="Latency objective, for the closing line and --max-batch."),
    click.option("--max-batch", is_flag=True, help="Find the largest batch within --slo-ms and memory."),
    click.option("--bundle", "bundles", type=_PATH, multiple=True, help="Estimator bundle; repeatable."),
    click.option("--gpu-spec", "gpu_specs", type=_PATH, multiple=True, help="GPU file (TOML); repeatable."),
    click.option("--plugin", "plugins", type=_PATH, multiple=True, help="Python file with rules; it is run."),
    click.option("--allow-unknown", is_flag=True, help="Lower bounds in spite of unknown operators."),
    click.option("--kernels", is_flag=True, help="List every kernel."),
    click.option(
        "--format", "form", type=click.Choice(FORMATS), help="Default: by suffix of -o, else table."
    ),
    click.option("-o", "--output", type=_PATH, help="File to write to, wholly or not at all."),
)


def dims_of(pairs: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The values of ``--dim`` by name. Raises UsageError where one name has two."""
    dims: dict[str, int] = {}
    for name, number in pairs:
        if dims.setdefault(name, number) != number:
            raise UsageError(f"--dim {name}: found both {dims[name]} and {number}, expected one number")
    return dims


def estimate_options(function: F) -> F:
    """The options of an estimate, in the order of its help."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
