"""A file that somebody cuts short while it is read is an error in one line; a map of it would end the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.cli import run


def cut_short(path: Path, whole: Callable[..., Any], when: str) -> Callable[..., Any]:
    """Return ``whole`` as a function that cuts ``path`` short before it reads it, or once it has mapped it."""

    def cut(*given: Any, **named: Any) -> Any:
        if when == "before":
            os.truncate(path, 5000)
            return whole(*given, **named)
        result = whole(*given, **named)
        os.truncate(path, 5000)
        return result

    return cut


def saved(path: Path, seed: int) -> Path:
    """Write a model of 4 MB of weights."""
    weight = np.random.default_rng(seed).standard_normal((1024, 1024)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1024]) for name in "xy")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


READING = "gkestimator.onnx_io.reading.file", "strip_values"
LOCATING = "gkestimator.merging.editing.reading", "locate_values"
MAPPED = "gkestimator.merging.editing.values", "mapped_array"


@pytest.mark.parametrize(
    ("function", "when", "command"),
    [
        (READING, "before", ["estimate", "a.onnx", "--gpu", "T4"]),
        (LOCATING, "before", ["merge", "a.onnx", "b.onnx", "--gpu", "T4", "-o", "out.onnx"]),
        (MAPPED, "after", ["merge", "a.onnx", "b.onnx", "--gpu", "T4", "-o", "out.onnx"]),
    ],
)
def test_a_file_cut_short_is_an_error(
    function: tuple[str, str], when: str, command: list[str], tmp_path: Path
) -> None:
    for name in "ab":
        saved(tmp_path / f"{name}.onnx", 1)
    assert run(["estimate", str(tmp_path / "b.onnx"), "--gpu", "T4"]) == 0  # so that children load nothing
    import_module("gkestimator.merging.merge")
    pid = os.fork()  # of what may die by a signal
    if not pid:
        status = 70
        try:
            log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 2)
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - of the child alone
            os.chdir(tmp_path)
            owner = import_module(function[0])
            setattr(owner, function[1], cut_short(tmp_path / "a.onnx", getattr(owner, function[1]), when))
            status = run(command)
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, raw = os.waitpid(pid, 0)
    log_text = (tmp_path / "log").read_text()
    assert os.waitstatus_to_exitcode(raw) == 2, log_text
    (line,) = [line for line in log_text.splitlines() if "error" in line]
    assert "a.onnx" in line and "cut short" in line and "defect" not in line, log_text
    assert not (tmp_path / "out.onnx").exists()
