"""Every operator of the torch executor against ONNX's own node test cases: the published inputs and outputs."""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.operators.records import traits_of
from gkestimator.profiling.executors.base import EntryUnsupportedError
from gkestimator.profiling.executors.torch_calls import CALLS
from gkestimator.profiling.plan import PlanEntry

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed (it is no test dependency)"
    ),
]

# Inputs that say how to calculate, which exporters write as constants.
_CONSTANT = frozenset(
    [
        "shape",
        "axes",
        "axis",
        "repeats",
        "pads",
        "starts",
        "ends",
        "steps",
        "k",
        "split",
        "sizes",
        "scales",
        "roi",
        "min",
        "max",
        "ratio",
        "t",
        "mode",
        "training_mode",
        "value",
        "depth",
        "values",
        "start",
        "limit",
        "delta",
        "image_shape",
        "block_shape",
        "output_shape",
        "sequence_lens",
        "seq_lens",
        "size",
        "constant_value",
    ]
)
_CONSTANT_AT = {"Tile": (1,), "Expand": (1,)}
_MOST_ELEMENTS = 4096
_RANDOM = ("bernoulli", "dropout_default_mask_ratio", "training_dropout")
# Operators of the tables that the node cases cannot check, and why.
_UNCHECKED = {
    ("", "ConstantOfShape"): "folded: only constants go in",
    ("", "RandomNormal"): "random",
    ("", "RandomUniform"): "random",
    ("", "RandomNormalLike"): "random",
    ("", "RandomUniformLike"): "random",
    ("", "Bernoulli"): "random",
    ("", "Range"): "folded: only constants go in",
    ("", "GRU"): "all cases reset before the product; tests of sequences",
    ("", "GlobalLpPool"): "has no case; tests of sequences",
    ("", "Mish"): "its cases hold its expansion; tests of patterns",
    ("", "Unique"): "all cases ask for first occurrences; tests of sequences",
    ("gkestimator", "Linear"): "a fused group: tests of patterns",
    ("gkestimator", "Rsqrt"): "a fused group: tests of patterns",
}


@functools.cache
def _cases() -> dict[str, tuple[Fragment, list[np.ndarray]]]:
    """Name of a case to its fragment, with the case's inputs as values, and the outputs it should give."""
    from onnx.backend.test.case.node import collect_testcases

    found = {}
    for case in collect_testcases(None):
        made = _fragment(case)
        if made is not None:
            found[case.name] = made
    return found


def _fragment(case: Any) -> tuple[Fragment, list[np.ndarray]] | None:
    from onnx import TensorProto, helper, numpy_helper

    from gkestimator.profiling.executors.torch_calls import CALLS

    graph = case.model.graph
    if len(graph.node) != 1 or not case.data_sets:
        return None
    node = graph.node[0]
    if (node.domain, node.op_type) not in CALLS or any(word in case.name for word in _RANDOM):
        return None
    inputs, outputs = (
        [numpy_helper.to_array(v) if isinstance(v, TensorProto) else v for v in values]
        for values in case.data_sets[0]
    )
    tensors = []
    constant = _CONSTANT_AT.get(node.op_type, ())
    for at, (info, value) in enumerate(zip(graph.input, inputs, strict=True)):
        if not isinstance(value, np.ndarray | np.generic) or not info.type.HasField("tensor_type"):
            return None
        value = np.asarray(value)
        try:
            dtype = DType(
                helper.tensor_dtype_to_string(info.type.tensor_type.elem_type)
                .removeprefix("TensorProto.")
                .lower()
            )
        except ValueError:
            return None
        if value.size > _MOST_ELEMENTS or value.dtype.kind in "OUSc":
            return None
        tensors.append(
            FragmentTensor(
                name=info.name,
                dtype=dtype,
                shape=value.shape,
                role="constant" if info.name.lower() in _CONSTANT or at in constant else "input",
                fill="value",
                values=tuple(value.reshape(-1).tolist()),
            )
        )
    attributes = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, list):
            value = tuple(v.decode() if isinstance(v, bytes) else v for v in value)
        elif not isinstance(value, int | float):
            return None
        attributes[attribute.name] = value
    return (
        Fragment(
            opsets={o.domain: o.version for o in case.model.opset_import},
            nodes=(
                FragmentNode(
                    op_type=node.op_type,
                    domain=node.domain,
                    attributes=attributes,
                    inputs=tuple(node.input),
                    outputs=tuple(node.output),
                ),
            ),
            tensors=tuple(tensors),
            outputs=tuple(o for o in node.output if o),
        ),
        [np.asarray(o) for o in outputs],
    )


def _tolerance(dtype: np.dtype) -> tuple[float, float]:
    if dtype.name == "bfloat16":
        return 3e-2, 3e-2
    return (5e-3, 5e-3) if dtype == np.float16 else (5e-4, 1e-5)  # examples print four digits


def _check(case: str, fragment: Fragment, expected: list[np.ndarray]) -> None:
    """Raises EntryUnsupportedError, or AssertionError where the numbers are not those of the case."""
    from gkestimator.profiling.executors.torch import TorchExecutor

    entry = PlanEntry(id="node-case", fragment=fragment, dtype="fp32", source="test")
    prepared = TorchExecutor("cpu").prepare(entry, seed=0)
    try:
        outputs = prepared.outputs()
    finally:
        prepared.close()
    assert len(outputs) == len(expected), case
    if "top_k_same_values" in case:  # ONNX takes the first of equals, torch whichever
        outputs, expected = outputs[:1], expected[:1]
    for found, wanted in zip(outputs, expected, strict=True):
        assert tuple(found.shape) == wanted.shape, case
        rtol, atol = _tolerance(wanted.dtype)
        numbers = found.float().numpy() if str(found.dtype) == "torch.bfloat16" else found.numpy()
        if wanted.dtype.kind in "fV" or wanted.dtype.name == "bfloat16":
            found64, wanted64 = numbers.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(found64, wanted64, rtol=rtol, atol=atol, err_msg=case)
        else:
            np.testing.assert_array_equal(numbers, wanted, err_msg=case)
            assert numbers.dtype == wanted.dtype, case


@pytest.mark.parametrize("key", sorted(CALLS), ids=lambda key: ".".join(key).lstrip("."))
def test_an_operator_gives_the_numbers_of_its_node_cases(key: tuple[str, str]) -> None:
    """Every case of the operator is equal, or refused by name; at least one is equal."""
    equal, refused = [], []
    for case, (fragment, expected) in _cases().items():
        if (fragment.nodes[0].domain, fragment.nodes[0].op_type) == key:
            try:
                _check(case, fragment, expected)
                equal.append(case)
            except EntryUnsupportedError as e:
                refused.append(f"{case}: {e}")
    print("\n".join(refused))
    if key in _UNCHECKED or "torch" in traits_of(key).view_in:
        # Views launch nothing alone; the other tests run them between operators that do.
        assert all("launches nothing" in why for why in refused) or key in _UNCHECKED
    else:
        assert equal


def test_what_is_refused_does_not_grow() -> None:
    from gkestimator.profiling.executors.torch_calls.program import program_of

    built = Counter[bool]()
    for fragment, _ in _cases().values():
        try:
            program_of(fragment, "fp32")
        except EntryUnsupportedError:
            built[False] += 1
        else:
            built[True] += 1
    assert built[True] >= 920, built
