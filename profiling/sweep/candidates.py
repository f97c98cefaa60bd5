"""Everything that could be measured, as fragments in a precision with the kernels and sizes that say what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.fragments import Fragment
from gkestimator.core.kernels import Kernel
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.hardware.runtimes.profiles import load_runtime, resolve_dtype
from gkestimator.lowering import LoweringOptions, lower_each
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.operators.registry import Kernels
from gkestimator.profiling.plan import entry_id
from gkestimator.profiling.sweep.precision import in_dtype, native_dtype

LARGEST_BYTES = 2 * 10**9
"""Inputs, weights and results of one entry: fits beside other tenants on a GPU of 8 GB."""
MOST_FLOPS = 4 * 10**12
"""A third of a second on a V100 in fp32; what is larger behaves as what is this large."""


@frozen
class SweepCandidate:
    """Hold what could be measured. ``kernels``: what it launches in ``dtype``. ``nbytes``: of what goes in."""

    id: str
    fragment: Fragment
    dtype: str
    source: str
    kernels: Kernels
    nbytes: int


def lowering_options(runtime: str, dtypes: Iterable[str], gpu: GpuSpec) -> dict[str, LoweringOptions]:
    """Return what each word of ``plan.DTYPES`` means under ``runtime`` on ``gpu``. Raises UsageError for a
    precision that the GPU lacks."""
    profile = load_runtime(runtime)
    options = {}
    for dtype in dtypes:
        resolved = resolve_dtype(profile, dtype, gpu)
        options[dtype] = LoweringOptions(
            runtime=runtime_traits(runtime).lowers_as,
            dtype=dtype,
            matmul_precision=resolved.matmul_precision,
            conv_precision=resolved.conv_precision,
            half=resolved.half,
        )
    return options


@dataclass(slots=True, kw_only=True)
class CandidateCollector:
    """Lower fragments in every precision wanted, keep what can be measured, count what is left out and why."""

    options: Mapping[str, LoweringOptions]
    candidates: list[SweepCandidate] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _ids: set[str] = field(default_factory=set)

    def add(self, fragment: Fragment, source: str) -> list[int]:
        """Return the positions of the new candidates that ``fragment`` gives, one a precision; none for what
        is known already.

        A float32 fragment is wanted in fp32, in tf32 where that changes a kernel, and in half precision; one that is in
        half precision already in that alone.
        """
        # What was exported in half precision is run in that.
        native = native_dtype(fragment)
        words = [w for w in self.options if native is None or w == native]
        if not words:
            self.left_out[f"{native} operators: not among the precisions wanted"] += 1
            return []
        # A fragment that one precision cannot lower is left out of all, with the reason once.
        try:
            graphs = lower_each(fragment_graph(fragment), [self.options[w] for w in words])
        except GkestimatorError as e:
            self.left_out[f"{fragment.op_type}: {e}"] += 1
            return []
        made: list[int] = []
        known: list[Kernels] = []
        for word, graph in zip(words, graphs, strict=True):
            kernels = tuple(k for step in graph.steps for k in step.kernels)
            if not kernels:
                self.left_out["views, which launch nothing"] += 1
                continue
            if kernels in known or self._too_large(kernels):
                continue  # tf32 changes matrix work alone
            known.append(kernels)
            typed = in_dtype(fragment, word)
            if typed is None:
                continue
            name = entry_id(typed, word)
            if name in self._ids:
                continue
            self._ids.add(name)
            made.append(len(self.candidates))
            self.candidates.append(
                SweepCandidate(
                    id=name,
                    fragment=typed,
                    dtype=word,
                    source=source,
                    kernels=kernels,
                    nbytes=sum(t.nbytes for t in typed.tensors),
                )
            )
        return made

    def _too_large(self, kernels: Sequence[Kernel]) -> bool:
        moved = sum(k.read_bytes + k.write_bytes for k in kernels)
        large = moved > LARGEST_BYTES or sum(k.flops for k in kernels) > MOST_FLOPS
        if large:
            self.left_out["larger than 2 GB or 4 TFLOP"] += 1
        return large
