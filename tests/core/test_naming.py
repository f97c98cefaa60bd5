"""Which files a command line means and what their models are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gkestimator.core.naming import distinct_names, find_models


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/x.onnx", "a/y.onnx"], ("x", "y")),
        (["timm/r.onnx", "ethz/r.onnx", "z/q.onnx"], ("timm/r", "ethz/r", "q")),
        (["a/b/r.onnx", "c/b/r.onnx"], ("a/b/r", "c/b/r")),
        (["/r.onnx", "/b/r.onnx"], ("r", "b/r")),
        (["a/r.onnx", "a/r.ort"], ("r.onnx", "r.ort")),
        (["a/r.onnx", "a/r.onnx"], ("r", "r#2")),
    ],
)
def test_distinct_names(paths: list[str], names: tuple[str, ...]) -> None:
    assert distinct_names([Path(p) for p in paths]) == names


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b/2.onnx", "b/1.ONNX", "b/c/3.onnx", "b/readme.txt", "a[1].onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    found, failures = find_models(
        [
            str(tmp_path / n)
            for n in ("b", "b/2.onnx", "a[1].onnx", "b/**/*.onnx", "missing.onnx", "empty", "no*")
        ]
    )
    assert [p.name for p in found] == ["1.ONNX", "2.onnx", "3.onnx", "a[1].onnx", "missing.onnx"]
    assert ["without models" in str(failures[0][1]), "no file matches" in str(failures[1][1])] == [True, True]
    assert len(failures) == 2
