"""Resolve the GPUs of a request: which there are, what the runtime calculates in on each, and which are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gkestimator.core.errors import UsageError
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import KernelGraph
from gkestimator.core.options import spelled
from gkestimator.core.records import Names, frozen
from gkestimator.estimation.request import EstimateRequest
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec
from gkestimator.hardware.runtimes import checked_layout, runtime_traits
from gkestimator.hardware.runtimes.profiles import RuntimeProfile, resolve_dtype
from gkestimator.memory import ENGINES
from gkestimator.operators.quantise import is_quantised
from gkestimator.operators.registry import LoweringOptions


@frozen
class Target:
    """Hold one GPU with what the runtime calculates in on it.

    ``of_group``: nobody named it, but a group that it belongs to (``all``): it may be left out. ``wider``: how the
    runtime may lower a model instead, where the dtype word permits it to store wider types.
    """

    gpu: GpuSpec
    options: LoweringOptions
    dtype: str
    note: str | None
    of_group: bool
    wider: tuple[LoweringOptions, ...] = ()

    @property
    def all_options(self) -> tuple[LoweringOptions, ...]:
        """Return every way in which a model may be lowered for it, that with the narrowest types first."""
        return (self.options, *self.wider)


@frozen
class Targets:
    """Hold the GPUs that are estimated for, and the names of those of a group that are not."""

    known: tuple[Target, ...]
    left_out: Names = ()

    def without(self, target: Target, reason: UsageError) -> Targets:
        """Return these without ``target``. Raises ``reason`` where it was named itself or is the last one."""
        known = tuple(other for other in self.known if other is not target)
        if not target.of_group or not known:
            raise reason
        return Targets(known=known, left_out=(*self.left_out, target.gpu.name))

    def by_options(self) -> dict[LoweringOptions, Target]:
        """Return every set of options that models are lowered under, with the first GPU that asks for it."""
        targets: dict[LoweringOptions, Target] = {}
        for target in self.known:
            for options in target.all_options:
                targets.setdefault(options, target)
        return targets

    @property
    def left_out_note(self) -> str | None:
        """Return the one line that names the GPUs left out; None where there are none."""
        if not self.left_out:
            return None
        names = ", ".join(self.left_out)
        return f"left out, for a figure or a precision that this needs is lacking or unknown: {names}"


def targets_of(request: EstimateRequest, catalogue: GpuCatalogue, profile: RuntimeProfile) -> Targets:
    """Return the GPUs of ``request``; those of a group that lack what it needs are left out.

    Raises UsageError where one that is named itself lacks it or is named twice, and where all of a group do.
    """
    known: list[Target] = []
    left_out: list[str] = []
    reason = None
    for text, of_group in catalogue.expanded(request.gpus).items():
        try:
            gpu, note = catalogue.resolve(text)
            if of_group and request.max_batch:
                gpu.visible_bytes()
            known.append(_target(request, profile, gpu, note, of_group))
        except UsageError as e:
            if not of_group:
                raise
            left_out.append(text)
            reason = e
    named = {target.gpu.name for target in known if not target.of_group}
    distinct = [target for target in known if not (target.of_group and target.gpu.name in named)]
    if not distinct:
        raise reason or UsageError("no GPU is named")
    _refuse_same_gpu_twice(distinct)
    return Targets(known=tuple(distinct), left_out=tuple(left_out))


def _target(
    request: EstimateRequest, profile: RuntimeProfile, gpu: GpuSpec, note: str | None, of_group: bool
) -> Target:
    resolved = resolve_dtype(profile, request.dtype, gpu)
    attention = request.attention
    if attention == "auto" and gpu.compute_capability < runtime_traits(request.runtime).fused_attention_from:
        attention = "eager"
    options = LoweringOptions(
        runtime=runtime_traits(request.runtime).lowers_as,
        dtype=resolved.stored,
        matmul_precision=resolved.matmul_precision,
        conv_precision=resolved.conv_precision,
        half=resolved.half,
        permits=resolved.permits,
        attention=attention,
        amp_norms=request.amp_norms,
        unfold_batchnorm=request.unfold_batchnorm,
        graph_level=request.graph_level,
        layout=checked_layout(request.runtime, request.layout),
    )
    wider = tuple([_stored_in(options, place) for place in range(1, len(resolved.permits))])
    return Target(
        gpu=gpu, options=options, dtype=resolved.effective, note=note, of_group=of_group, wider=wider
    )


def _stored_in(options: LoweringOptions, place: int) -> LoweringOptions:
    """Return ``options`` for a graph that is stored in the permitted precision at ``place``."""
    permits = options.permits[place:]
    return replace(
        options,
        dtype=permits[0].value,
        matmul_precision=options.matmul_precision if options.matmul_precision in permits else permits[0],
        conv_precision=options.conv_precision if options.conv_precision in permits else permits[0],
        half=options.half if options.half in permits else None,
        permits=permits,
    )


def _refuse_same_gpu_twice(targets: Sequence[Target]) -> None:
    names = [target.gpu.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"GPU {name} is named twice: each GPU type is estimated once")


def graph_launch_calls(request: EstimateRequest, profile: RuntimeProfile) -> float | None:
    """Return how many framework calls' time the launch of a CUDA graph takes the host, None where none is asked for.

    A number of calls, so that a host that is slow at calls is as slow at this one. Raises UsageError where the runtime
    captures none.
    """
    if not request.cuda_graph:
        return None
    if profile.graph_launch_us is None:
        raise UsageError(f"{spelled('cuda_graph')}: {profile.name} captures no CUDA graphs")
    return profile.graph_launch_us / profile.host_overhead_us


def most_scratch_bytes(request: EstimateRequest, profile: RuntimeProfile) -> int | None:
    """Return the most scratch memory that a kernel may take; None without a limit. Raises UsageError where the runtime
    has none.
    """
    if request.workspace_mib is None:
        return None
    if profile.allocator not in ENGINES:
        raise UsageError(
            f"{spelled('workspace_mib')}: {profile.name} has no such limit, expected a runtime that builds an engine"
        )
    return int(request.workspace_mib * 2**20)


def effective_dtype(graph: KernelGraph, resolved: str, asked: str) -> str:
    """Return what the row names: under ``auto`` the precision in which most of the matrix work is done."""
    if asked != "auto":
        return resolved
    work: dict[str, int] = {}
    for step in graph.steps:
        for kernel in step.kernels:
            if kernel.gemm is not None or kernel.conv is not None:
                word = kernel.precision.value
                work[word] = work.get(word, 0) + kernel.flops * step.repeat
    if work:
        # Of equal work the first by name, so that the same model always says the same.
        return max(sorted(work), key=lambda word: work[word])
    return resolved


def require_quantised(request: EstimateRequest, graph: OperatorGraph) -> None:
    """Raise UsageError where int8 is asked for of a float model and the runtime does not quantise models itself."""
    calibrates = bool(runtime_traits(request.runtime).permits)
    if request.dtype == "int8" and not calibrates and not is_quantised(graph):
        raise UsageError(
            f"{graph.name}: dtype int8 needs a quantised model, found no QuantizeLinear, QLinear* or *Integer "
            f"operator; quantise the file first, use another dtype, or runtime tensorrt, which calibrates"
        )
