"""Merges that took minutes or terabytes, or left a file that does not run: what is checked runs apart, before it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from gkestimator.cli import run
from gkestimator.core.errors import ModelError
from gkestimator.core.leftovers import SUFFIX
from gkestimator.merging import apart
from gkestimator.merging.checking import check_outputs

pytest.importorskip("onnxruntime")

LOOP = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[1,16] x) => (float[1,16] y) <int64 trips = {9000000}> {
        h = MatMul (x, w)
        y = Loop (trips, , h) <body = b (int64 i, bool on, float[1,16] s) => (bool out, float[1,16] r) {
            out = Identity (on)
            r = Add (s, s)
        }>
    }"""
PRODUCT = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[ROWS,16] x) => (float[ROWS,16] y) { y = MatMul (x, w) }"""


def siblings(folder: Path, text: str) -> list[str]:
    """Write a model twice, with one weight that both share; return the two names."""
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    names = [str(folder / "a.onnx"), str(folder / "b.onnx")]
    for name in names:
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
        onnx.save(model, name)
    return names


def merged(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Merge the siblings into ``merged.onnx``; return the exit status and all that was printed."""
    output = folder / "merged.onnx"
    status = run(
        ["merge", *siblings(folder, text), "--always", "--tau-ms", "inf", "--report", "-o", str(output)]
    )
    printed = capsys.readouterr()
    assert "defect" not in printed.err
    assert not [path for path in folder.iterdir() if path.name.endswith(SUFFIX)]
    return status, printed.out + printed.err


@pytest.mark.slow
def test_a_loop_of_nine_million_trips_is_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GKEST_LIMITS", "check_seconds=4")
    status, said = merged(tmp_path, LOOP, capsys)
    assert status == 0 and (tmp_path / "merged.onnx").is_file()
    assert "not compared" in said and "check_seconds=NUMBER raises this limit" in said


@pytest.mark.slow
def test_inputs_of_gigabytes_are_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = merged(tmp_path, PRODUCT.replace("ROWS", "60000000"), capsys)
    assert status == 0 and (tmp_path / "merged.onnx").is_file()
    assert "not compared" in said and "3,840,000,000 bytes of random inputs" in said


def test_shapes_of_terabytes_are_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = merged(tmp_path, PRODUCT.replace("ROWS", str(2**42)), capsys)
    assert status == 2 and not (tmp_path / "merged.onnx").exists()
    assert said.startswith("gkest: error: ") and said.count("\n") == 1


def test_random_inputs_are_bounded_before_they_are_drawn(tmp_path: Path) -> None:
    first, second = siblings(tmp_path, PRODUCT.replace("ROWS", str(2**44)))
    with pytest.raises(ModelError, match="check_input_bytes=NUMBER raises this limit"):
        check_outputs(Path(first), {"a": Path(second)})


def test_a_merged_file_that_does_not_run_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there stays: status and files agree."""
    output = tmp_path / "merged.onnx"
    output.write_bytes(b"of yesterday")

    def refuse(*_: object) -> None:
        raise ModelError("merged.onnx: onnxruntime does not run it")

    monkeypatch.setattr("gkestimator.merging.merge.check_apart", refuse)
    status, said = merged(tmp_path, PRODUCT.replace("ROWS", "N"), capsys)
    assert status == 2 and "does not run it" in said
    assert output.read_bytes() == b"of yesterday"


ANSWERS: dict[str, tuple[Callable[..., object], str]] = {
    "memory": (MemoryError, "check_bytes=NUMBER raises this limit"),
    "allocator": (lambda: ModelError("m: std::bad_alloc"), "check_bytes=NUMBER raises this limit"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_too_little_memory_is_no_fault_of_the_merged_file(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, words = ANSWERS[case]

    def fail(*_: object, **__: object) -> None:
        raise error()  # type: ignore[misc]

    monkeypatch.setattr(apart, "check_outputs", fail)
    monkeypatch.setattr(apart, "_limit_memory", lambda most: None)
    answer = apart._answer({"merged": "m", "sources": [], "samples": 1, "memory": 1 << 30})
    assert words in answer["reason"]
