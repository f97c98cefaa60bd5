"""What torch ran on the CPU for one call, by its own profiler: the pieces that would be kernels on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from gkestimator.profiling.executors.base import ExecutionError
from gkestimator.profiling.records import HostKernel, HostKernels

_MARK = "gkestimator.repeat"
# They allocate or look at memory and calculate nothing, though they have code of their own for the CPU.
_BOOKKEEPING = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
        "set_",
        "as_strided_",
        "squeeze_",
        "unsqueeze_",
        "transpose_",
        "t_",
        "detach_",
        "item",
        "_local_scalar_dense",
        "is_nonzero",
        "_unsafe_view",
        "result_type",
        "is_pinned",
        "type_as",
        "lift_fresh",
        "_nnpack_available",
        "cudnn_is_acceptable",
    )
)


def profiled(run: Callable[[], None], repeats: int) -> HostKernels:
    """Return the pieces of ``run`` in order, each with its duration in every repeat.

    A piece is the outermost operator with code of its own for the CPU; composed ones are taken apart, views and
    allocations left out. Raises ExecutionError where two repeats consist of different pieces.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            with record_function(_MARK):
                run()
    rounds = []
    for event in profiler.events():
        if event.name == _MARK and event.cpu_parent is None:
            rounds.append([piece for child in event.cpu_children for piece in _pieces(child)])
    if len(rounds) != repeats:
        raise ExecutionError(f"torch's profiler shows {len(rounds)} of {repeats} repeats")
    names = [piece.name for piece in rounds[0]]
    for other in rounds[1:]:
        if [piece.name for piece in other] != names:
            raise ExecutionError(f"one repeat ran {len(names)} pieces, another {len(other)} or other ones")
    kernels = []
    for name, *repeated in zip(names, *rounds, strict=True):
        durations = [float(piece.time_range.elapsed_us()) for piece in repeated]
        kernels.append(HostKernel(name=name, durations_us=tuple(durations)))
    return tuple(kernels)


def _pieces(event: Any) -> Iterator[Any]:
    name = event.name
    if name in _BOOKKEEPING or "::" not in name:
        return
    inner = [piece for child in event.cpu_children for piece in _pieces(child)]
    calculates, own = _nature(name)
    if calculates and (own or not inner):
        yield event
    else:
        yield from inner


@lru_cache(maxsize=4096)
def _nature(name: str) -> tuple[bool, bool]:
    """Say whether an operator can calculate (a view gives its input's memory back and cannot), and whether it has code
    of its own for the CPU rather than being composed of other operators."""
    import torch

    views = []
    own = False
    for schema in torch._C._jit_get_schemas_for_operator(name):
        full = f"{name}.{schema.overload_name}" if schema.overload_name else name
        try:
            own = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU") or own
        except RuntimeError:  # an overload of TorchScript alone
            continue
        alias = schema.returns[0].alias_info if schema.returns else None
        views.append(alias is not None and not alias.is_write)
    if views:
        return (not all(views), own)
    return (True, True)
