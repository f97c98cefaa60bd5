"""Small graphs of two branches: one value is cut along axis 0, each part goes its own way through equal nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditableModel, ValueShape, read_editable, write_editable
from gkestimator.merging.lifting import Lifted, lift

__all__ = ["Branch", "Way", "count", "graph", "lifted", "results", "shapes_of"]

BRANCHES = ("p", "q")


@dataclass
class Branch:
    """The nodes and constants of one branch while it is built. ``place``: 0, 1, ..."""

    place: int
    batch: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    given: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return BRANCHES[self.place]

    def const(self, array: Any, dtype: Any = np.float32) -> str:
        """A constant of its own name in each branch."""
        name = f"{self.name}/c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def random(self, *shape: int, seed: int = 0, apart: float = 0.0) -> str:
        """A random constant, equal in all branches but for ``apart`` times the branch's place."""
        drawn = np.random.default_rng([seed, *shape]).standard_normal(shape)
        return self.const(drawn + apart * self.place)

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def op(self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        """A node; the name of its first output."""
        stem = f"{self.name}/{op_type}{len(self.nodes)}"
        names = [stem if i == 0 else f"{stem}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=stem, domain=domain, **attributes))
        return names[0]

    def input(self, *dims: int) -> str:
        """An input of the model that only this branch reads, with the branch's batch in front."""
        name = f"{self.name}_in{len(self.inputs)}"
        self.inputs.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{self.name}_batch", *dims])
        )
        self.given[name] = np.random.default_rng([7, self.place]).standard_normal(
            (self.batch, *dims), np.float32
        )
        return name


#: Builds a branch on the value of that name; the name of its result.
Way = Callable[[Branch, str], str]


def graph(
    way: Way,
    dims: Sequence[int],
    *,
    batches: tuple[int, int] = (2, 3),
    symbolic: bool = False,
    opset: int = 17,
    merged: bool = False,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Concat(p, q) -> Tanh -> Split -> ``way`` on both parts, and inputs for it. ``merged``: one more Concat."""
    branches = [Branch(place, batch) for place, batch in enumerate(batches)]
    inputs, feeds = [], {}
    for branch in branches:
        first = f"{branch.name}_batch" if symbolic else branch.batch
        inputs.append(helper.make_tensor_value_info(branch.name, TensorProto.FLOAT, [first, *dims]))
        feeds[branch.name] = np.random.default_rng(branch.place).standard_normal(
            (branch.batch, *dims), np.float32
        )
    constants: list[onnx.TensorProto] = []
    nodes = [
        helper.make_node("Concat", ["p", "q"], ["whole"], name="helper/Concat", axis=0),
        helper.make_node("Tanh", ["whole"], ["tanh"], name="helper/Tanh"),
    ]
    if symbolic:
        constants += [numpy_helper.from_array(np.array([i], np.int64), f"int{i}") for i in (0, 1)]
        for name in BRANCHES:
            nodes.append(helper.make_node("Shape", [name], [f"{name}.shape"], name=f"helper/{name}/Shape"))
            nodes.append(
                helper.make_node(
                    "Gather", [f"{name}.shape", "int0"], [f"{name}.size"], name=f"helper/{name}/Gather"
                )
            )
        nodes.append(helper.make_node("Concat", ["p.size", "q.size"], ["sizes"], name="helper/sizes", axis=0))
    else:
        constants.append(numpy_helper.from_array(np.array(batches, np.int64), "sizes"))
    nodes.append(helper.make_node("Split", ["tanh", "sizes"], ["p.x", "q.x"], name="helper/Split", axis=0))
    ends = [way(branch, f"{branch.name}.x") for branch in branches]
    for branch in branches:
        nodes += branch.nodes
        constants += branch.constants
        inputs += branch.inputs
        feeds |= branch.given
    if merged:
        nodes.append(helper.make_node("Concat", ends, ["end"], name="helper/End", axis=0))
        ends = ["end"]
    outputs = [helper.make_empty_tensor_value_info(e) for e in ends]
    made = helper.make_graph(nodes, "branches", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9), feeds


def _session(model: onnx.ModelProto | str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def shapes_of(
    model: onnx.ModelProto, runs: Sequence[Mapping[str, np.ndarray]], prefix: str
) -> dict[str, ValueShape]:
    """Shapes of all values as they are in ONNX Runtime, None where the runs differ. Sets the types of the outputs."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    del probed.graph.output[:]
    names = [o for n in model.graph.node for o in n.output if o and n.op_type != "SplitToSequence"]
    probed.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    session = _session(probed)
    found = [dict(zip(names, session.run(names, dict(feeds)), strict=True)) | dict(feeds) for feeds in runs]
    for output in model.graph.output:
        value = found[0][output.name]
        sizes = [
            d if all(f[output.name].shape[i] == d for f in found) else None for i, d in enumerate(value.shape)
        ]
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, sizes))
    shapes: dict[str, ValueShape] = {}
    for name, value in found[0].items():
        others = [f[name].shape for f in found]
        dims = tuple(d if all(o[i] == d for o in others) else None for i, d in enumerate(value.shape))
        shapes[prefix + name] = ValueShape(dtype=_DTYPES[value.dtype.name], dims=dims)
    return shapes


_DTYPES = {
    "float32": DType.FLOAT, "float16": DType.FLOAT16, "int64": DType.INT64, "int32": DType.INT32,
    "bool": DType.BOOL, "uint8": DType.UINT8, "int8": DType.INT8,
}  # fmt: skip


def read(model: onnx.ModelProto, folder: Path) -> EditableModel:
    path = folder / "branches.onnx"
    onnx.save(model, path)
    return read_editable(path, prefix="m/", name="m")


def lifted(
    model: onnx.ModelProto,
    feeds: Sequence[Mapping[str, np.ndarray]],
    folder: Path,
    *,
    tolerance: float = 1e-7,
) -> Lifted:
    """``lift`` on the graph; nodes whose names begin with ``helper/`` are those that emission made."""
    shapes = shapes_of(model, feeds, "m/")
    editable = read(model, folder)
    replaces = {n.name: () for n in editable.nodes if n.name.startswith("m/helper/")}
    replaces |= {n.name: ("m/p/super", "m/q/super") for n in editable.nodes if n.name.startswith("m/super")}
    replaces["m/helper/Tanh"] = ("m/p/Tanh", "m/q/Tanh")
    replaces = {k: v for k, v in replaces.items() if any(n.name == k for n in editable.nodes)}
    return lift(editable, shapes=shapes, replaces=replaces, tolerance=tolerance)


def results(model: EditableModel, feeds: Mapping[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Outputs by name in ONNX Runtime, without the prefix."""
    write_editable(model, folder / "lifted.onnx")
    session = _session(str(folder / "lifted.onnx"))
    names = [o.name for o in session.get_outputs()]
    found = session.run(names, {f"m/{k}": v for k, v in feeds.items()})
    return {n.removeprefix("m/"): f for n, f in zip(names, found, strict=True)}


def originals(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the graph as it was built."""
    session = _session(model)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def count(found: Lifted, op_type: str) -> int:
    """How many nodes there are of a type, without those that only cut, join and measure."""
    return sum(n.op_type == op_type and found.replaces.get(n.name) != () for n in found.model.nodes)
