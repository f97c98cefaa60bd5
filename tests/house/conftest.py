"""Give tests a copy of the installed package that they may add files to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = ("cli", "datasets", "models", "profiling")
RUN = "import sys; from gkestimator.cli import run; sys.exit(run(sys.argv[1:]))"


class HouseCopy:
    """Hold a copy of the package, laid out as it is installed, and run its commands and the project's suites on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "gkestimator"
        shutil.copytree(ROOT / "gkestimator", self.package)
        for name in MAPPED:
            shutil.copytree(ROOT / name, self.package / name)

    def add(self, path: str, text: str) -> None:
        """Write a new file of the package; it must not exist yet."""
        file = self.package / path
        assert not file.exists()
        file.write_text(text, encoding="utf-8")

    def edit(self, path: str, before: str, after: str) -> None:
        """Replace a text that stands once in a file of the package."""
        file = self.package / path
        source = file.read_text(encoding="utf-8")
        assert source.count(before) == 1, f"{path}: {source.count(before)} times {before!r}"
        file.write_text(source.replace(before, after), encoding="utf-8")

    def run(self, *arguments: str | Path, status: int = 0) -> str:
        """Run `gkest` with arguments; return what it printed, both streams."""
        return self._python("-c", RUN, *arguments, status=status)

    def suite(self, *arguments: str, status: int) -> str:
        """Run a suite of the project's tests on the copy; return what pytest printed."""
        return self._python(
            "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, status=status, cwd=ROOT
        )

    def _python(self, *arguments: str | Path, status: int, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd or self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder), "GKEST_HOME": str(self.folder / "home")},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr


@pytest.fixture
def house(tmp_path: Path) -> HouseCopy:
    """Return a copy of the package in a folder of its own."""
    return HouseCopy(tmp_path)


@pytest.fixture
def one_node(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a model of one operator on an 8 x 64 tensor."""
    import onnx
    from onnx import TensorProto, helper

    def write(op_type: str, domain: str = "", name: str = "net") -> Path:
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 64]) for n in "xy")
        graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], domain=domain)], "g", [x], [y])
        opsets = [helper.make_opsetid("", 17)]
        if domain:
            opsets.append(helper.make_opsetid(domain, 1))
        path = tmp_path / f"{name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path

    return write
