"""Write ``torch_host_calls.json``: how many ATen calls eager mode makes for ONNX's node tests.

    python tests/data/make_torch_host_calls.py          # needs torch (CPU); made with torch 2.13.0 and onnx 1.23.2

Each case runs once through the calls that ``profile run`` measures (``profiling/executors/torch_calls``), below a
``TorchDispatchMode`` that sees every call after autograd. Not counted: views (results that alias an argument) and
allocations without a value, for neither launches a kernel. Cases that the executor refuses are left out.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.test.loader import load_node_model_tests
from torch.utils._python_dispatch import TorchDispatchMode

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.lowering import LoweringOptions
from gkestimator.lowering.patterns import find_matches
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import RULE_KINDS
from gkestimator.profiling.executors.torch_calls import Call, Late, build_call

TARGET = Path(__file__).with_name("torch_host_calls.json")
MOST_CASES = 3  # of one operator: its variants differ little
MOST_VALUES = 64  # elements of a whole-number input that is taken as a host value
KINDS = frozenset(
    [
        "arg_reduction",
        "batch_norm",
        "elementwise",
        "fill",
        "gated_activation",
        "global_pool",
        "group_norm",
        "layer_norm",
        "local_response_norm",
        "loss",
        "lp_norm",
        "one_hot",
        "pool",
        "reduction",
        "scan",
        "softmax",
    ]
)
_OPTIONS = LoweringOptions(
    runtime="torch", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
)


class CallCounter(TorchDispatchMode):
    """Record the names of the ATen calls that launch something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        aliases = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
        is_view = bool(aliases) and not any(info.is_write for info in aliases)
        if not is_view and not name.startswith("aten::empty"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def bound(case: Any, path: Path) -> OperatorGraph | None:
    """Return the case as a graph in which small whole-number inputs are known values."""
    path.write_bytes(case.model.SerializeToString())
    values = {
        info.name: array
        for info, array in zip(case.model.graph.input, case.data_sets[0][0], strict=True)
        if isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.size <= MOST_VALUES
    }
    for attempt in ({}, {"inputs": values}):
        try:
            return read_model(path, name=case.name).bind(**attempt)
        except GkestimatorError:
            continue
    return None


def single_operator(graph: OperatorGraph) -> tuple[Operator, str]:
    """Return the operator that is called, and the name of the pattern that makes another of it ("" for none)."""
    for match in find_matches(graph, _OPTIONS):
        return match.operator, match.name
    return graph.operators[0], ""


def count(case: Any, graph: OperatorGraph) -> list[str]:
    """Return the calls of the case, in order. Raises GkestimatorError where the executor has none."""
    op, pattern = single_operator(graph)
    arrays = {
        info.name: array for info, array in zip(case.model.graph.input, case.data_sets[0][0], strict=True)
    }
    known = {
        name: array
        for name, array in arrays.items()
        if array.dtype.kind in "iu" and array.size <= MOST_VALUES
    }
    call = Call(op=op, known=known, static=frozenset(arrays))
    run = build_call(call, pattern)
    operands: list[Any] = []
    for position, value in enumerate(op.inputs):
        if not isinstance(value, Tensor) or position in call.host:
            operands.append(None)
            continue
        operand = torch.from_numpy(np.array(arrays[value.name]))
        change = call.prepared.get(position)
        operands.append(operand if change is None else change(operand))
    function = run.make(operands, torch.device("cpu")) if isinstance(run, Late) else run
    with torch.inference_mode(), CallCounter() as counter:
        function(*operands)
    return counter.names


def main() -> None:
    """Write the counts of all cases."""
    counts: dict[str, list[str]] = {}
    per_operator: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in load_node_model_tests():
            nodes = case.model.graph.node
            if len(nodes) != 1 or nodes[0].domain or RULE_KINDS.get(("", nodes[0].op_type)) not in KINDS:
                continue
            op_type = nodes[0].op_type
            if per_operator.get(op_type, 0) >= MOST_CASES:
                continue
            graph = bound(case, Path(folder) / "case.onnx")
            if graph is None:
                continue
            try:
                counts[case.name] = count(case, graph)
            except (GkestimatorError, RuntimeError, TypeError, NotImplementedError) as error:
                print(f"left out: {case.name}: {error}")
                continue
            per_operator[op_type] = per_operator.get(op_type, 0) + 1
    header = {
        "made_by": "tests/data/make_torch_host_calls.py",
        "torch": torch.__version__,
        "onnx": onnx.__version__,
        "counted": "ATen calls below autograd, without views and empty allocations",
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(calls)}" for name, calls in sorted(counts.items()))
    TARGET.write_text(
        f'{{\n "about": {json.dumps(header)},\n "calls": {{\n{lines}\n }}\n}}\n', encoding="utf-8"
    )
    print(f"{TARGET.name}: {len(counts)} cases of {len(per_operator)} operators")


if __name__ == "__main__":
    main()
