"""Compare the fused groups of TensorRT's lowering with the layers of ten public engines.

    GKEST_SHARED=... python benchmarks/tensorrt_layers.py [--details]

The engines' networks are rebuilt (``benchmarks/_tensorrt_graphs.py``) and lowered. A layer counts as lowered to the same
group where a kernel of ours stands for the same operators. NoOps and "Reformatting CopyNode"s, which change layouts, are
no layers here. A layer's name leaves out some operators that it calculates: what folds into weights, the quantising of its
result, and an activation that quantising moved into it (its field ``activation`` has that), so those are left out on both
sides, and of an activation only counts whether there is one.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import onnx
import pandas as pd
from _shared import shared_dir
from _tensorrt_graphs import tensorflow_resnet50, torch_mobilenet, torch_resnet18

from gkestimator.core.graph import OperatorGraph
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.targets import targets_of
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.lowering import lower
from gkestimator.onnx_io.model import model_of

_ACTIVATIONS = frozenset({"Relu", "Clip"})
_UNNAMED = frozenset({"BatchNormalization", "QuantizeLinear", "DequantizeLinear", "Flatten", "Reshape"})
# engine: its network, the dtype option, the GPU
_ENGINES: Mapping[str, tuple[Callable[[], onnx.ModelProto], str, str]] = {
    "pytorch/resnet/A100/fp32": (lambda: torch_resnet18(32), "fp32", "A100-PCIE-80GB"),
    "pytorch/resnet/A100/fp16": (lambda: torch_resnet18(32), "fp16", "A100-PCIE-80GB"),
    "tensorflow/resnet/RTX-3090/fp32": (lambda: tensorflow_resnet50(32, qat=False), "fp32", "RTX-3090"),
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


def our_groups(graph: OperatorGraph, options: Any, types: Mapping[str, str]) -> list[Group]:
    """Return the groups that the lowering makes kernels of."""
    lowered = lower(graph, options)
    groups = []
    for step in lowered.steps:
        groups += [_group(lowered.groups.get(step.name, (step.name,)), types) for _ in step.kernels[:1]]
    return groups


def main() -> None:
    """Print a line per engine, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--details", action="store_true", help="name every layer that differs")
    details = parser.parse_args().details
    table = pd.read_parquet(shared_dir() / "data/tensorrt/tensorrt_layers.parquet")
    catalogue = gpu_catalogue()
    profile = load_runtime("tensorrt")
    total = Counter[str]()
    print(f"{'engine':40}{'layers':>8}{'the same':>10}{'share %':>9}{'only ours':>11}")
    for engine, (network, dtype, gpu) in _ENGINES.items():
        graph = model_of(network().SerializeToString(), name=engine).bind()
        types = {op.name: op.op_type for op in graph.operators}
        request = EstimateRequest(models=("x",), gpus=(gpu,), runtime="tensorrt", dtype=dtype)
        (target,) = targets_of(request, catalogue, profile).known
        theirs = Counter(engine_layers(table[table.engine == engine], types))
        ours = Counter(our_groups(graph, target.options, types))
        same = theirs & ours
        counts = {"layers": theirs.total(), "same": same.total(), "ours": (ours - theirs).total()}
        total.update(counts)
        _print(engine, counts)
        if details:
            _differences("engine", theirs - ours)
            _differences("ours", ours - theirs)
    _print("all", total)


def _print(name: str, counts: Mapping[str, int]) -> None:
    share = 100 * counts["same"] / counts["layers"]
    print(f"{name:40}{counts['layers']:8}{counts['same']:10}{share:9.1f}{counts['ours']:11}")


def _differences(whose: str, groups: Counter[Group]) -> None:
    for group in groups.elements():
        activation = ", activation" if group.activated else ""
        print(f"    {whose:8}{' + '.join(sorted(group.operators))}{activation}")


if __name__ == "__main__":
    main()
