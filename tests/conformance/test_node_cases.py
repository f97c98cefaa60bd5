"""ONNX's own backend node tests: every case is bound, and what is inferred equals the stored outputs.

A case is bound from its file alone, as a user would. Where that is refused because a shape inside hangs on
the *value* of a run-time input (the cases hold no initializers: Reshape's target is a graph input), it is
bound again with the values of the stored inputs, which ``Model.bind(inputs=...)`` takes; counts are printed.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, GkestimatorWarning
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import SequenceType, TensorType

pytestmark = pytest.mark.slow

_BY_NUMBER = dict(enumerate(DType, 1))  # TensorProto.DataType counts from 1 in this order
_BY_NAME = {t.value: t for t in DType} | {
    "float32": DType.FLOAT, "float64": DType.DOUBLE, "object": DType.STRING,
    "float8_e4m3fn": DType.FLOAT8E4M3FN,
    "float8_e4m3fnuz": DType.FLOAT8E4M3FNUZ, "float8_e5m2": DType.FLOAT8E5M2,
    "float8_e5m2fnuz": DType.FLOAT8E5M2FNUZ, "float4_e2m1fn": DType.FLOAT4E2M1,
    "float8_e8m0fnu": DType.FLOAT8E8M0,
}  # fmt: skip

# Cases that the file alone cannot shape: the run-time value of an input steers the shape of a tensor inside,
# of which nothing is declared. Each must be refused in one line that says so.
REFUSED = frozenset(
    [
        "test_affine_grid_2d_expanded",
        "test_affine_grid_2d_align_corners_expanded",
        "test_affine_grid_3d_expanded",
        "test_affine_grid_3d_align_corners_expanded",
        "test_blackmanwindow_expanded",
        "test_blackmanwindow_symmetric_expanded",
        "test_hammingwindow_expanded",
        "test_hammingwindow_symmetric_expanded",
        "test_hannwindow_expanded",
        "test_hannwindow_symmetric_expanded",
        "test_center_crop_pad_crop_expanded",
        "test_center_crop_pad_pad_expanded",
        "test_center_crop_pad_crop_and_pad_expanded",
        "test_center_crop_pad_crop_axes_hwc_expanded",
        "test_center_crop_pad_crop_negative_axes_hwc_expanded",
        "test_center_crop_pad_crop_axes_chw_expanded",
        "test_split_to_sequence_1",
    ]
)
# Cases whose shape only a declaration can name: the size of an encoded image, the pieces of a text. Extremes
# of an empty set have no value to fold.
UNDECLARED = ("test_image_decoder_", "test_string_split_", "test_reduce_max_empty", "test_reduce_min_empty")
# Loops whose trip count hangs on bfloat16 values, which are not folded: a user names the count.
TRIP_COUNTS = {"test_range_bfloat16_type_positive_delta_expanded": 2}
LEAST_CASES = 1_500  # onnx 1.17 has fewer cases than 1.23.2 (1,884); a loader that finds none must fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one case went.

    ``how`` is 'file'; 'assumed' (bound from the file, a warning names the assumed branch or trip count, and
    compared with values given); 'values' (refused from the file alone) or 'refused'.
    """

    how: str
    error: str = ""
    wrong: tuple[str, ...] = ()
    graph: OperatorGraph | None = None


def _type_of(data: Any) -> TensorType | SequenceType:
    if data is None:
        return SequenceType((), optional=True)
    if isinstance(data, (list, tuple)):
        return SequenceType(tuple(t for t in map(_type_of, data) if isinstance(t, TensorType)))
    if hasattr(data, "data_type"):
        return TensorType(_BY_NUMBER[data.data_type], tuple(data.dims))
    array = np.asarray(data)
    dtype = DType.STRING if array.dtype.kind in "OUS" else _BY_NAME[array.dtype.name]
    return TensorType(dtype, array.shape)


def _array(data: Any) -> np.ndarray | None:
    """Numbers as an array; None for strings and for what is too large to steer a shape."""
    array = numpy_helper.to_array(data) if hasattr(data, "data_type") else np.asarray(data)
    return array if array.size <= 1_024 and array.dtype.kind in "iubfV" else None


def _given(model: Any, inputs: list[Any], *, values: bool) -> dict[str, Any]:
    """Types of sequences and optionals (a file cannot state their length); with ``values`` numbers too."""
    given: dict[str, Any] = {}
    for info, data in zip(model.graph.input, inputs, strict=True):
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            found = _type_of(data)
            if kind == "optional_type" and isinstance(found, TensorType):
                found = SequenceType((found,), optional=True)
            given[info.name] = found
        elif any(not d.HasField("dim_value") for d in info.type.tensor_type.shape.dim):
            given[info.name] = _type_of(data)
        elif values and (array := _array(data)) is not None:
            given[info.name] = array
    return given


def _differences(name: str, found: Any, stored: Any) -> list[str]:
    expected = _type_of(stored)
    if isinstance(expected, SequenceType):
        if isinstance(found, Tensor):
            return [f"{name}: a tensor, stored is a sequence"]
        if len(found.elements_) != len(expected.elements) and not found.bounded:
            return [f"{name}: {len(found.elements_)} elements, stored are {len(expected.elements)}"]
        elements, items = list(found.elements_), list(stored or ())
        if found.bounded:  # the order is not known either: compare from large to small
            elements.sort(key=lambda t: t.nbytes, reverse=True)
            items.sort(key=lambda a: a.nbytes, reverse=True)
        pairs = zip(elements, items, strict=False)
        return [d for i, (f, s) in enumerate(pairs) for d in _differences(f"{name}[{i}]", f, s)]
    if not isinstance(found, Tensor):
        if found.elements_ and len(found.elements_) == 1:  # an optional that holds a tensor
            return _differences(name, found.elements_[0], stored)
        return [f"{name}: a sequence, stored is {expected.dtype} {list(expected.shape)}"]
    wrong = []
    if found.dtype is not expected.dtype:
        wrong.append(f"{name}: dtype {found.dtype}, stored is {expected.dtype}")
    if found.bounded:
        fits = len(found.shape) == len(expected.shape) and all(
            e <= f for e, f in zip(expected.shape, found.shape, strict=True)
        )
        if not fits:
            wrong.append(f"{name}: bound {list(found.shape)}, stored is {list(expected.shape)}")
    elif found.shape != expected.shape:
        wrong.append(f"{name}: shape {list(found.shape)}, stored is {list(expected.shape)}")
    return wrong


def _all_differences(graph: OperatorGraph, outputs: list[Any]) -> tuple[str, ...]:
    pairs = zip(graph.outputs, outputs, strict=True)
    return tuple(d for found, stored in pairs for d in _differences(found.name, found, stored))


def _bind(path: Path, case: Any) -> Outcome:
    inputs, outputs = list(case.data_sets[0][0]), case.data_sets[0][1]
    how, error = "refused", ""
    for values in (False, True):
        try:
            trips = TRIP_COUNTS.get(case.name) if values else None
            graph = read_model(path).bind(inputs=_given(case.model, inputs, values=values), trip_count=trips)
        except GkestimatorError as e:
            how, error = ("values", str(e)) if not values else ("refused", str(e))
            continue
        wrong = _all_differences(graph, outputs)
        if not values:
            if wrong and graph.warnings:
                how, error = "assumed", "; ".join(graph.warnings)
                continue
            how = "file"
        return Outcome(how=how, error=error, wrong=wrong, graph=graph)
    return Outcome(how=how, error=error)


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference implementations divide by zero on purpose
        loader = pytest.importorskip("onnx.backend.test.loader")
        return list(loader.load_node_model_tests())


@pytest.fixture(scope="module")
def outcomes(cases: list[Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("node_cases")
    path = folder / "case.onnx"
    result = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GkestimatorWarning)
        for case in cases:
            path.write_bytes(case.model.SerializeToString())
            result[case.name] = _bind(path, case)
    return result


@pytest.mark.slow
def test_at_least_99_percent_are_bound(outcomes: dict[str, Outcome]) -> None:
    counts = Counter(o.how for o in outcomes.values())
    print(f"\n{len(outcomes)} cases: {dict(counts)}")
    for name, outcome in outcomes.items():
        if outcome.how != "file":
            print(f"  {outcome.how}: {name}: {outcome.error}")
    assert len(outcomes) >= LEAST_CASES
    assert counts["file"] + counts["assumed"] >= 0.99 * len(outcomes)
    assert counts["refused"] == 0  # with the values of its inputs every case binds


def test_the_cases_refused_from_the_file_alone_are_those_expected_each_in_one_line(
    outcomes: dict[str, Outcome],
) -> None:
    refused = {name: o.error for name, o in outcomes.items() if o.how in ("values", "refused")}
    assert set(refused) <= REFUSED
    for name, error in refused.items():
        assert "\n" not in error, name
        assert "not known before the model runs" in error, name


def test_inferred_outputs_equal_the_stored_ones(outcomes: dict[str, Outcome]) -> None:
    wrong = {name: o.wrong for name, o in outcomes.items() if o.wrong}
    for name, differences in wrong.items():
        print(f"  {name}: {'; '.join(differences)}")
    assert not wrong


def test_only_operators_whose_size_depends_on_data_are_bounded(outcomes: dict[str, Outcome]) -> None:
    def bounded(operator: Operator) -> bool:
        return any(v is not None and v.bounded for v in operator.outputs)

    found = {
        o.op_type for r in outcomes.values() if r.graph is not None for o in r.graph.operators if bounded(o)
    }
    print(f"  bounded: {sorted(found)}")
    assert {"NonZero", "Unique", "Compress", "NonMaxSuppression"} <= found


@pytest.mark.slow
def test_rules_alone_shape_what_the_values_of_the_inputs_decide(cases: list[Any], tmp_path: Path) -> None:
    """Nothing is declared of any output, the inputs' values are given: every shape comes from a rule."""
    path = tmp_path / "case.onnx"
    refused, wrong = {}, {}
    for case in cases:
        model = type(case.model)()
        model.CopyFrom(case.model)
        names = [o.name for o in model.graph.output]
        del model.graph.output[:]
        model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
        path.write_bytes(model.SerializeToString())
        inputs, outputs = list(case.data_sets[0][0]), case.data_sets[0][1]
        try:
            given = _given(case.model, inputs, values=True)
            graph = read_model(path).bind(inputs=given, trip_count=TRIP_COUNTS.get(case.name))
        except GkestimatorError as e:
            refused[case.name] = str(e)
            continue
        if differences := _all_differences(graph, outputs):
            wrong[case.name] = differences
    print(f"\n{len(cases)} cases, {len(refused)} refused: {sorted(refused)}")
    assert not wrong
    assert {name for name in refused if not name.startswith(UNDECLARED)} == set()
