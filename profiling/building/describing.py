"""What an entry is, besides its times: the columns that its fragment and our own lowering rules give, and the floor
below which no device can be."""

from __future__ import annotations

import json

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.kernels import Family, Kernel, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.hardware.runtimes.profiles import load_runtime, resolve_dtype
from gkestimator.kernel_models.roofline import Roofline, roofline
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.type_names import Fields

_HALF = {"fp16": Precision.FP16, "bf16": Precision.BF16}
# Winograd's F(4x4, 3x3) needs 36 products where the definition needs 144: a convolution may do a quarter of
# its nominal FLOPs.
_FEWEST_PRODUCTS = 4.0


@frozen
class Description:
    """Hold entry-level columns. Bytes and FLOPs are sums over the kernels of our rule and None without one
    (``problem`` says why). ``families``: of those kernels, that of the longest first. ``roofline_us``:
    theirs, one after the other; ``floor_us``: what no device of the type can be faster than
    (:func:`physical_floor_us`)."""

    op_type: str
    op_domain: str
    opset: int | None
    graph: str
    attributes: str | None
    input_shapes: str
    batch_size: int | None = None
    weight_bytes: int | None = None
    input_bytes: int | None = None
    output_bytes: int | None = None
    flops: int | None = None
    families: tuple[Family, ...] = ()
    rule_kernels: int | None = None
    roofline_us: float | None = None
    floor_us: float | None = None
    problem: str | None = None

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that its operands have, each once; 0 where they are not known."""
        return (self.input_bytes or 0) + (self.weight_bytes or 0) + (self.output_bytes or 0)


def lowering_options(runtime: str, dtype: str, gpu: GpuSpec | None) -> LoweringOptions:
    """Return the options for an entry of ``dtype`` that ran on ``gpu``. A precision that the specification
    lacks, though the device ran it, is taken at its word. Raises UsageError for an unknown runtime."""
    profile = load_runtime(runtime)
    if gpu is not None:
        try:
            resolved = resolve_dtype(profile, dtype, gpu)
        except UsageError:
            pass
        else:
            return LoweringOptions(
                runtime=runtime_traits(runtime).lowers_as,
                dtype=resolved.effective,
                matmul_precision=resolved.matmul_precision,
                conv_precision=resolved.conv_precision,
                half=resolved.half,
            )
    precision = Precision(dtype)
    return LoweringOptions(
        runtime=runtime_traits(runtime).lowers_as,
        dtype=dtype,
        matmul_precision=precision,
        conv_precision=precision,
        half=_HALF.get(dtype),
    )


def describe(entry: PlanEntry, runtime: str, gpu: GpuSpec | None) -> Description:
    """Describe all of ``entry`` that needs no measurement. A fragment that cannot be lowered keeps what it says of
    itself; ``problem`` tells why the rest is missing."""
    fragment = entry.fragment
    own = _own(fragment)
    try:
        graph = fragment_graph(fragment)
        lowered = lower(graph, lowering_options(runtime, entry.dtype, gpu))
    except GkestimatorError as e:
        return Description(**own, problem=str(e))
    kernels = [kernel for step in lowered.steps for kernel in step.kernels]
    sides = None
    roofline_us = None
    floor_us = None
    if gpu is not None and kernels:
        sides = roofline(KernelTable.from_kernels(kernels), gpu)
        roofline_us = float(sides.roofline_us.sum())
        floor_us = physical_floor_us(kernels, sides, gpu)
    return Description(
        **own,
        batch_size=graph.batch_size if graph.batch_size >= 1 else None,
        weight_bytes=sum(k.weight_bytes for k in kernels),
        input_bytes=sum(k.read_bytes - k.weight_bytes for k in kernels),
        output_bytes=sum(k.write_bytes for k in kernels),
        flops=sum(k.flops for k in kernels),
        families=_by_size(kernels, sides),
        rule_kernels=len(kernels),
        roofline_us=roofline_us,
        floor_us=floor_us,
        problem=None if kernels else "our rules say that it launches nothing",
    )


def _own(fragment: Fragment) -> Fields:
    first = fragment.nodes[0]
    shapes = {t.name: list(t.shape) for t in fragment.tensors}
    attributes: Fields = {}
    listed = list(shapes.values())
    if len(fragment.nodes) == 1:
        for name, value in sorted(first.attributes.items()):
            attributes[name] = list(value) if isinstance(value, tuple) else value
        # An omitted input keeps its place, so that the second list is the second input's.
        listed = [shapes.get(name, []) for name in first.inputs]
    text = json.dumps(attributes, separators=(",", ":"), allow_nan=False)
    return {
        "op_type": fragment.op_type,
        "op_domain": fragment.op_domain,
        "opset": fragment.opsets.get(first.domain),
        "graph": fragment.text(),
        "attributes": text if attributes else None,
        "input_shapes": json.dumps(listed, separators=(",", ":")),
    }


def _by_size(kernels: list[Kernel], sides: Roofline | None) -> tuple[Family, ...]:
    """Return the families, that of the longest kernel first."""
    if sides is None:
        size = np.array([k.flops / 16 + k.read_bytes + k.write_bytes for k in kernels], dtype=float)
    else:
        size = sides.roofline_us
    order = np.argsort(-size, kind="stable")
    return tuple(dict.fromkeys(kernels[i].family for i in order))


def physical_floor_us(kernels: list[Kernel], sides: Roofline, gpu: GpuSpec) -> float:
    """Return the time of ``kernels`` that this GPU cannot beat, in microseconds, warm caches and clever
    algorithms granted.

    Compute: FLOPs at the peak rate, a quarter of them for convolutions (Winograd). Memory: compulsory bytes
    of the whole operator less one L2, which repeats on the same tensors may find their data in; what passes
    between its kernels is not counted. The larger of both, since kernels of one call may overlap.
    """
    share = np.array([1 / _FEWEST_PRODUCTS if k.family is Family.CONV else 1.0 for k in kernels])
    compute = float((sides.compute_us * share).sum())
    compulsory = kernels[0].read_bytes + kernels[-1].write_bytes
    memory = max(0, compulsory - gpu.l2_bytes) / gpu.dram_bytes_per_s * 1e6
    return max(compute, memory)
