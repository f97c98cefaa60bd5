"""Compare the fused groups of TensorRT's lowering with the layers of ten public engines.

    GKEST_SHARED=... python benchmarks/tensorrt_layers.py [--details]

The engines' networks are rebuilt (``benchmarks/_tensorrt_graphs.py``) and lowered. A layer counts as lowered to the same
group where a kernel of ours stands for the same operators. NoOps and "Reformatting CopyNode"s, which change layouts, are
no layers here; what copies between float and 8 bits is one. A layer's name leaves out some operators that it calculates: what folds into weights, the quantising of its
result, and an activation that quantising moved into it (its field ``activation`` has that), so those are left out on both
sides, and of an activation only counts whether there is one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import onnx
import pandas as pd
from _shared import shared_dir
from _tensorrt_graphs import tensorflow_resnet50, torch_mobilenet, torch_resnet18

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Kernel
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.targets import targets_of
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.lowering import lower
from gkestimator.onnx_io.model import model_of
from gkestimator.operators.registry import LoweringOptions

_COPY = "copy.reformat"
_MOVES = frozenset({"Flatten", "Transpose", "Pad", "MaxPool", "GlobalAveragePool"})
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_ACTIVATIONS = frozenset({"Relu", "Clip"})
_UNNAMED = frozenset({"BatchNormalization", "QuantizeLinear", "DequantizeLinear", "Flatten", "Reshape"})
# engine: its network, the dtype option (the tactics of those named fp32 are TF32 ones), the GPU
ENGINES: Mapping[str, tuple[Callable[[], onnx.ModelProto], str, str]] = {
    "pytorch/resnet/A100/fp32": (lambda: torch_resnet18(32), "auto", "A100-PCIE-80GB"),
    "pytorch/resnet/A100/fp16": (lambda: torch_resnet18(32), "fp16", "A100-PCIE-80GB"),
    "tensorflow/resnet/RTX-3090/fp32": (lambda: tensorflow_resnet50(32, qat=False), "auto", "RTX-3090"),
    "tensorflow/resnet/RTX-3090/fp16": (lambda: tensorflow_resnet50(32, qat=False), "fp16", "RTX-3090"),
    "pytorch/resnet/A100/qat": (lambda: torch_resnet18(32, qat=True), "int8", "A100-PCIE-80GB"),
    "pytorch/resnet/A100/qat-residual": (
        lambda: torch_resnet18(32, qat=True, residual=True), "int8", "A100-PCIE-80GB"),
    "pytorch/resnet/A100/qat-residual-qgap": (
        lambda: torch_resnet18(32, qat=True, residual=True, pooling=True), "int8", "A100-PCIE-80GB"),
    "tensorflow/resnet/RTX-3090/qat": (lambda: tensorflow_resnet50(32, qat=True), "int8", "RTX-3090"),
    "mobilenet": (lambda: torch_mobilenet(residual=False, apart=True), "int8", "TITAN-RTX"),
    "mobilenet_v2_residuals": (lambda: torch_mobilenet(residual=True, apart=False), "int8", "TITAN-RTX"),
}  # fmt: skip


class Group(NamedTuple):
    """Hold the operators of a layer: their names without activations, and whether there is one."""

    operators: frozenset[str]
    activated: bool


def _group(names: Iterable[str], types: Mapping[str, str], activated: bool = False) -> Group:
    members = [name for name in names if name in types]
    named = [name for name in members if types[name] not in _UNNAMED]
    activations = [name for name in named if types[name] in _ACTIVATIONS]
    kept = [name for name in named if types[name] not in _ACTIVATIONS]
    # Quantising is a layer of its own where it is in no other.
    return Group(frozenset(kept or activations or members), activated or (bool(kept) and bool(activations)))


def engine_layers(layers: pd.DataFrame, types: Mapping[str, str]) -> list[Group]:
    """Return the layers of an engine that do work."""
    groups = []
    for row in layers.itertuples():
        name = str(row.layer_name)
        if row.layer_type == "NoOp" or name.startswith("Reformatting CopyNode"):
            continue
        parts = [part.removeprefix("PWN(").removesuffix(")") for part in name.split(" + ")]
        activated = str(row.activation) in ("RELU", "CLIPPED_RELU")
        group = _group(parts, types, activated)
        if not group.operators:
            raise SystemExit(f"no operator of the rebuilt graph is named in layer {name!r}")
        groups.append(group)
    return groups


def our_groups(graph: OperatorGraph, options: LoweringOptions) -> list[Group]:
    """Return the groups that the lowering makes kernels of. A copy into 8 bits, or back, is the QuantizeLinear (or
    DequantizeLinear) that the kernel reads through.
    """
    types = {op.name: op.op_type for op in graph.operators}
    lowered = lower(graph, options)
    pairs = _Pairs(graph)
    groups = []
    for step in lowered.steps:
        members = lowered.groups.get(step.name, (step.name,))
        if any(kernel.name != _COPY for kernel in step.kernels):
            groups.append(_group(members, types))
        for kernel in step.kernels:
            name = pairs.converting(members, kernel) if kernel.name == _COPY else None
            if name is not None:
                groups.append(Group(frozenset({name}), False))
    return groups


class _Pairs:
    """Find the quantising operators before an operator, which the lowering takes out of the graph."""

    def __init__(self, graph: OperatorGraph) -> None:
        self._operators = {op.name: op for op in graph.operators}
        self._makers = {op.outputs[0].name: op for op in graph.operators if op.outputs[0] is not None}
        self._used: set[str] = set()

    def converting(self, members: Iterable[str], kernel: Kernel) -> str | None:
        """Return the operator that ``kernel``, a copy before ``members``, stands for; None for one of layouts alone."""
        for member in members:
            if kernel.element_bytes > 1 and self._operators[member].op_type in _PRODUCTS:
                continue  # reads 8 bits itself
            for value in self._operators[member].inputs:
                maker = None if value is None else self._makers.get(value.name)
                while maker is not None and maker.op_type in _MOVES:
                    maker = self._makers.get(maker.inputs[0].name)
                if maker is None or maker.op_type != "DequantizeLinear":
                    continue
                (value, *_) = maker.inputs
                if kernel.element_bytes == 1:
                    maker = self._makers.get(value.name)
                if maker is None or value.elements != kernel.rows or maker.name in self._used:
                    continue
                self._used.add(maker.name)
                return maker.name
        return None


def compared(table: pd.DataFrame, engine: str, runtime: str) -> tuple[Counter[Group], Counter[Group]]:
    """Return the layers of ``engine``, and the groups of its network under ``runtime``."""
    network, dtype, gpu = ENGINES[engine]
    graph = model_of(network().SerializeToString(), name=engine).bind()
    types = {op.name: op.op_type for op in graph.operators}
    layers = engine_layers(table[table.engine == engine], types)
    return Counter(layers), Counter(our_groups(graph, _options(runtime, dtype, gpu)))


def main() -> None:
    """Print a line per engine, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--details", action="store_true", help="name every layer that differs")
    details = parser.parse_args().details
    table = pd.read_parquet(shared_dir() / "data/tensorrt/tensorrt_layers.parquet")
    total = Counter[str]()
    print(f"{'engine':40}{'layers':>8}{'the same':>10}{'share %':>9}{'only ours':>11}{'CUDA provider %':>17}")
    for engine in ENGINES:
        theirs, ours = compared(table, engine, "tensorrt")
        _, baseline = compared(table, engine, "onnxruntime")
        counts = {
            "layers": theirs.total(),
            "same": (theirs & ours).total(),
            "ours": (ours - theirs).total(),
            "baseline": (theirs & baseline).total(),
        }
        total.update(counts)
        _print(engine, counts)
        if details:
            _differences("engine", theirs - ours)
            _differences("ours", ours - theirs)
    _print("all", total)


def _options(runtime: str, dtype: str, gpu: str) -> LoweringOptions:
    """Return what an estimate under these options lowers by."""
    request = EstimateRequest(models=("x",), gpus=(gpu,), runtime=runtime, dtype=dtype)
    (target,) = targets_of(request, gpu_catalogue(), load_runtime(runtime)).known
    return target.options


def _print(name: str, counts: Mapping[str, int]) -> None:
    share = 100 * counts["same"] / counts["layers"]
    baseline = 100 * counts["baseline"] / counts["layers"]
    print(f"{name:40}{counts['layers']:8}{counts['same']:10}{share:9.1f}{counts['ours']:11}{baseline:17.1f}")


def _differences(whose: str, groups: Counter[Group]) -> None:
    for group in groups.elements():
        activation = ", activation" if group.activated else ""
        print(f"    {whose:8}{' + '.join(sorted(group.operators))}{activation}")


if __name__ == "__main__":
    main()
