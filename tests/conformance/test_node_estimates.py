"""ONNX's own backend node tests through the whole estimate: file, bind, lower, predict, row.

Every case is estimated from its file alone under every runtime, as ``gkest estimate`` would. What a file leaves open
(the length of a sequence, a symbolic dimension) is then given, as a user would with ``--dim``; what is refused even
so hangs on the value of a run-time input, and is estimated once that value is given.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gkestimator.cli import run
from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, GkestimatorWarning
from gkestimator.estimation import estimate_rows
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.operators.registry import SequenceType, TensorType
from gkestimator.tables import Requirement

pytestmark = pytest.mark.slow

GPU = "V100-SXM2-16GB"
LEAST_CASES = 1_500  # onnx 1.17 has fewer than 1.23.2 (1,884); a loader that finds none must fail
MOST_SECONDS = 90
# The run-time value of an input steers the shape of a tensor inside, of which nothing is declared.
VALUES_DECIDE = (
    "test_affine_grid_", "test_blackmanwindow_", "test_hammingwindow_", "test_hannwindow_", "test_center_crop_pad_",
    "test_split_to_sequence_1",
)  # fmt: skip
# Text, images and classical models have no GPU kernels in any runtime.
ON_THE_CPU = frozenset(
    [
        "Binarizer", "ImageDecoder", "LabelEncoder", "RegexFullMatch", "StringConcat", "StringNormalizer",
        "StringSplit", "TfIdfVectorizer", "TreeEnsemble",
    ]
)  # fmt: skip
_ELEMENT = {"float32": DType.FLOAT, "float64": DType.DOUBLE}


def _tensor(data: Any) -> TensorType:
    array = np.asarray(data)
    name = array.dtype.name
    return TensorType(_ELEMENT[name] if name in _ELEMENT else DType(name), array.shape)


def _open_types(case: Any) -> dict[str, Any]:
    """Types of the inputs that the file leaves open: sequences, and tensors of symbolic shape."""
    given: dict[str, Any] = {}
    for info, data in zip(case.model.graph.input, case.data_sets[0][0], strict=True):
        kind = info.type.WhichOneof("value")
        if kind == "sequence_type":
            given[info.name] = SequenceType(tuple(_tensor(item) for item in data))
        elif kind == "tensor_type" and any(
            not d.HasField("dim_value") for d in info.type.tensor_type.shape.dim
        ):
            given[info.name] = _tensor(data)
    return given


def _values(case: Any) -> dict[str, Any]:
    """The stored values of small integer inputs."""
    pairs = zip(case.model.graph.input, case.data_sets[0][0], strict=True)
    arrays = {info.name: np.asarray(data) for info, data in pairs if not isinstance(data, list)}
    return {name: a for name, a in arrays.items() if a.dtype.kind in "iu" and a.size <= 64}


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference implementations divide by zero on purpose
        loader = pytest.importorskip("onnx.backend.test.loader")
        return {case.name: case for case in loader.load_node_model_tests()}


@pytest.fixture(scope="module")
def paths(cases: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("node_estimates")
    found = {}
    for name, case in cases.items():
        found[name] = folder / f"{name}.onnx"
        found[name].write_bytes(case.model.SerializeToString())
    return found


def _estimate(paths: Sequence[Path], runtime: str, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GkestimatorWarning)
        return estimate_rows(paths, gpus=[GPU], runtime=runtime, **more)


def _literal(data: Any) -> str:
    """Return a stored value as ``--input`` takes it."""
    if isinstance(data, list):
        return f"[{','.join(_literal(item) for item in data)}]"
    return json.dumps(np.asarray(data).tolist())


def _command_line(case: Any, *, values: bool) -> list[str]:
    """Return the options that a user would add: sizes of dimensions, sequences of any shape, and values."""
    options = []
    sizes = {}
    for info, data in zip(case.model.graph.input, case.data_sets[0][0], strict=True):
        kind = info.type.WhichOneof("value")
        tensor = info.type.sequence_type.elem_type.tensor_type
        if kind == "sequence_type" and not tensor.HasField("shape"):
            options += ["--input", f"{info.name}={_literal(data)}"]
        elif kind == "sequence_type":
            sizes |= {d.dim_param: n for d, n in zip(tensor.shape.dim, data[0].shape, strict=True)}
        elif values and np.asarray(data).dtype.kind in "iu":
            options += ["--input", f"{info.name}={_literal(data)}"]
        else:
            shape = zip(info.type.tensor_type.shape.dim, np.shape(data), strict=True)
            sizes |= {d.dim_param: n for d, n in shape}
    for name, size in sizes.items():
        options += ["--dim", f"{name}={size}"] if name else []
    return options


def _rows_and_errors(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, set[str], dict[str, str]]:
    """Run ``gkest estimate``; return its status, the models with a row, and the errors by model."""
    status = run(["estimate", *map(str, arguments), "--gpu", GPU, "--format", "json", "--quiet"])
    caught = capsys.readouterr()
    models = {row["model"] for row in json.loads(caught.out)["rows"]} if caught.out else set()
    lines = [line.removeprefix("gkest: error: ") for line in caught.err.splitlines()]
    return status, models, {Path(line.partition(": ")[0]).stem: line for line in lines}


def test_at_least_1875_are_estimated_from_the_command_line(
    cases: dict[str, Any], paths: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, alone, refused = _rows_and_errors(capsys, *paths.values())
    assert status == 1 and alone | refused.keys() == cases.keys()
    ways = Counter({"from the file alone": len(alone)})
    # Nothing is estimated of no samples.
    left = {name: error for name, error in refused.items() if "batch_size: found 0" in error}
    for name, error in refused.items() - left.items():
        for way, values in (("with --dim, or --input for a sequence", False), ("with --input values", True)):
            options = _command_line(cases[name], values=values)
            status, models, errors = _rows_and_errors(capsys, paths[name], *options)
            if options and status == 0 and models == {name}:
                ways[way] += 1
                break
        else:
            left[name] = errors.get(name, error)
    with capsys.disabled():
        print(f"\ngkest estimate: {ways.total():,} of {len(cases):,} node cases")
        for way, count in ways.items():
            print(f"  {count:5,} {way}")
        for name, error in left.items():
            print(f"  refused: {name}{error.partition(name + '.onnx')[2]}")
    assert len(cases) - ways.total() <= 9  # 1,875 of 1,884


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_at_least_99_percent_are_estimated(
    runtime: str, cases: dict[str, Any], paths: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    result = _estimate(list(paths.values()), runtime)
    rows = {r.model: r for r in result.rows}
    refused: dict[str, GkestimatorError] = {path.stem: error for path, error in result.failures}
    assert rows.keys() | refused.keys() == cases.keys() and len(cases) >= LEAST_CASES
    empty = {name for name, error in refused.items() if "batch_size: found 0" in str(error)}
    assert len(empty) < 10  # of no samples no row is made
    refused = {name: error for name, error in refused.items() if name not in empty}
    by_types = {}
    for name in list(refused):
        if given := _open_types(cases[name]):
            again = _estimate([paths[name]], runtime, inputs=given)
            by_types.update({r.model: r for r in again.rows})
    by_values = {}
    for name in refused.keys() - by_types.keys():
        given = _open_types(cases[name]) | _values(cases[name])
        again = _estimate([paths[name]], runtime, inputs=given)
        assert not again.failures, again.failures
        by_values.update({r.model: r for r in again.rows})
    seconds = time.monotonic() - started
    with capsys.disabled():
        print(
            f"\n{runtime}: {len(cases)} node cases in {seconds:.1f} s: {len(rows)} estimated from the file alone, "
            f"{len(by_types)} with --dim or types, {len(by_values)} with the values of inputs"
        )
    assert len(rows) + len(by_types) >= 0.99 * (len(cases) - len(empty))
    assert {n for n in by_values if not n.startswith(VALUES_DECIDE)} == set()
    for name, error in refused.items():
        assert "\n" not in str(error) and name in str(error)
        assert "not known before the model runs" in str(error) or name in by_types, str(error)
    for row in (*rows.values(), *by_types.values(), *by_values.values()):
        _check(row)
    counts = Counter("kernels" if r.kernels else "none" for r in rows.values())
    assert counts["kernels"] > 0.85 * len(
        rows
    )  # an estimate in which nothing runs would pass the checks above
    assert seconds < MOST_SECONDS


def _check(row: Requirement) -> None:
    """What holds of every row, and what of those without any work on the GPU."""
    for name in (
        "latency_ms",
        "latency_low_ms",
        "copy_ms",
        "mreq_bytes",
        "reserved_bytes",
        "flops",
        "dram_bytes",
    ):
        value = getattr(row, name)
        assert value is not None and math.isfinite(value) and value >= 0, (row.model, name, value)
    assert row.latency_low_ms <= row.latency_ms
    assert row.unknown_kernels == 0
    on_cpu = "runs on the CPU" in row.warnings
    if on_cpu:
        assert row.latency_high_ms is None and row.throughput_rps is None, row.model
    else:
        assert row.latency_high_ms is not None and row.latency_high_ms >= row.latency_ms, row.model
    if row.kernels:
        assert row.latency_ms > 0 and row.dram_bytes > 0, row.model
        return
    assert row.occupancy_max_pct is None and row.sm_util_max_pct is None and row.coverage_pct is None, (
        row.model
    )
    assert row.flops == 0 and row.dram_bytes == 0
    if on_cpu:
        assert row.sm_util_mean_pct is None and row.dram_util_mean_pct is None, row.model
    else:
        assert "launches nothing on the GPU" in row.warnings, row.model


def test_what_runs_on_the_cpu_says_so(cases: dict[str, Any], paths: dict[str, Path]) -> None:
    chosen = {
        name: next(n.op_type for n in case.model.graph.node if n.op_type in ON_THE_CPU)
        for name, case in cases.items()
        if any(n.op_type in ON_THE_CPU for n in case.model.graph.node) and "_empty" not in name
    }  # of nothing, nothing is done
    assert len(chosen) > 30
    for runtime in RUNTIMES:
        result = _estimate([paths[name] for name in chosen], runtime)
        assert not result.failures
        for row in result.rows:
            assert f"runs on the CPU, its time not counted: {chosen[row.model]}" in row.warnings
            assert row.latency_high_ms is None and row.throughput_rps is None
