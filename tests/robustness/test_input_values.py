"""Values of inputs from the command line and from programs: read, bounded, checked, and for several models."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import UsageError

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (int64[2] size, float fill) => (float[h, w] y) { z = Expand(fill, size) y = Relu(z) }"""
LISTED = """<ir_version: 8, opset_import: ["": 17]>
g (seq(float[n, 3]) parts) => (float[h, 3] y) { y = ConcatFromSequence<axis = 0>(parts) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"sized": TEXT, "listed": LISTED}.items():
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{name}.onnx")
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, int], str]:
    """Run an estimate; return its status, the bytes of the output by model, and stderr."""
    status = run(["estimate", *map(str, arguments), "--gpu", "T4", "--format", "json"])
    caught = capsys.readouterr()
    rows = json.loads(caught.out)["rows"] if caught.out else []
    return status, {row["model"]: row["output_bytes"] for row in rows}, caught.err


def test_a_value_decides_a_shape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = folder / "sized.onnx"
    assert asked(capsys, model)[0] == 2
    assert asked(capsys, model, "--input", "size=[5, 7]", "--input", "fill=1")[:2] == (0, {"sized": 140})
    np.save(folder / "size.npy", np.array([5, 7]))
    np.save(folder / "by_columns.npy", np.asfortranarray(np.array([[5, 7]] * 2)))
    assert asked(capsys, model, "--input", f"size=@{folder / 'size.npy'}")[:2] == (0, {"sized": 140})
    assert (
        "expected int64 of shape [2]" in asked(capsys, model, "--input", f"size=@{folder}/by_columns.npy")[2]
    )
    for value in ([5, 7], (5, 7), np.array([5, 7], np.int32)):
        (row,) = gkestimator.estimate(model, "T4", inputs={"size": value}).to_dict("records")
        assert row["output_bytes"] == 140 and "estimated for given inputs: size" in row["warnings"]
    whole = asked(capsys, folder / "listed.onnx", "--input", "parts=[[[1,2,3]],[[1,2,3],[4,5,6]]]")
    assert whole[:2] == (0, {"listed": 36})


def test_of_several_models_those_take_it_that_have_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ["--input", "size=[5,7]", "--input", "parts=[[[1,2,3]]]"]
    status, sizes, errors = asked(capsys, folder, *values)
    assert (status, sizes) == (0, {"sized": 140, "listed": 12})
    assert "input size: not in listed, estimated without it" in errors
    status, _, errors = asked(capsys, folder, *values, "--input", "sise=[5,7]")
    assert status == 2 and "input 'sise' is in none of the 2 models" in errors
    assert "did you mean size?" in errors
    assert "did you mean size?" in asked(capsys, folder / "sized.onnx", "--input", "sise=[5,7]")[2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("size", "NAME=VALUE"),
        ("size=", "NAME=VALUE"),
        ("=3", "NAME=VALUE"),
        ("size=[1,", "a number, or numbers in lists"),
        ('size=["a",2]', "a number, or numbers in lists"),
        ("size={}", "a number, or numbers in lists"),
        ("size=NaN", "a number, or numbers in lists"),
        ("size=" + "9" * 5000, "a number, or numbers in lists"),
        ("size=" + "[" * 100_000, "a number, or numbers in lists"),
        ("size=" + "1" * (1 << 20 | 1), "GKEST_LIMITS=input_value_bytes=NUMBER raises this limit"),
        ("size=[[1,2],[3]]", "expected int64 of shape [2]"),
        ("size=[1,2,3]", "expected int64 of shape [2]"),
        ("size=5", "expected int64 of shape [2]"),
        ("size=[1.5,2]", "expected int64 of shape [2]"),
        ("size=[true,false]", "expected int64 of shape [2]"),
        ("size=[1,99999999999999999999]", "expected int64 of shape [2]"),
        ("size=[-5,7]", "node"),
        ("size=@no.npy", "no.npy"),
    ],
)
def test_other_values_are_refused_in_one_line(
    value: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = asked(capsys, folder / "sized.onnx", "--input", value)
    assert status == 2 and words in errors and "defect" not in errors and len(errors) < 900


def npy(heading: str, data: bytes = b"") -> bytes:
    """Return a file of NumPy with any heading."""
    raw = heading.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + data


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    return stream.getvalue()


def test_files_of_arrays_are_strangers_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [
        b"",
        b"PK\x03\x04",
        pickled(),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-2, -1)}", b"\0" * 16),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': ("),
        npy("__import__('os').system('true')"),
    ]
    for content in wrong:
        (folder / "bad.npy").write_bytes(content)
        status, _, errors = asked(capsys, folder / "sized.onnx", "--input", f"size=@{folder}/bad.npy")
        assert status == 2 and "bad.npy: found no array of numbers" in errors
    (folder / "bad.npy").write_bytes(bytes(2 << 20))
    assert "expected at most 1048576" in asked(capsys, folder, "--input", f"size=@{folder}/bad.npy")[2]


def test_a_name_said_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="values by name"):
        gkestimator.estimate("x.onnx", "T4", inputs=3)
    assert run(["estimate", "x.onnx", "--gpu", "T4", "--input", "a=1", "--input", "a=2"]) == 2
