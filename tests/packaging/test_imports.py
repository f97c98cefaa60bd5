"""What is imported when: nothing heavy at start-up, and dependencies between the parts that point one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THIRD_PARTY_AT_START = {
    "import gkestimator": set(),
    "import gkestimator.tables": set(),
    "import gkestimator.cli": {"click"},
    "from gkestimator.cli import run; run(['--help'])": {"click"},
    "from gkestimator.cli import run; run(['estimate', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['evaluate', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['schedule', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['simulate', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['compare', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['lengths', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['merge', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['export', '--help'])": {"click"},
    "from gkestimator.cli import run; run(['gpus'])": {"click", "numpy"},
}
# Lowest first. A room imports its own modules and those of any lower line (ARCHITECTURE.md says why in this order).
LAYERS = (
    {"core"},
    {"tables", "documents", "hardware"},
    {"jobs", "reporting"},
    {"operators"},
    {"onnx_io"},
    {"lowering"},
    {"kernel_models"},
    {"bundles"},
    {"memory"},
    {"estimation"},
    {"llm"},
    {"training"},
    {"evaluation"},
    {"interference"},
    {"placement"},
    {"exporting", "simulation"},
    {"merging"},
    {"serving"},
    {"library"},
    {"profiling"},
    {"cli"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


@pytest.mark.slow
@pytest.mark.parametrize("statement", THIRD_PARTY_AT_START)
def test_third_party_modules_at_start_up(statement: str) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "import importlib.metadata as m\n"
        "tops = {n.partition('.')[0] for n in set(sys.modules) - before}\n"
        "tops -= set(sys.stdlib_module_names) | {'gkestimator'}\n"
        "print('MODULES', *sorted(t for t in tops if not t.startswith('_')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.strip().splitlines()[-1].split()[1:])
    assert found <= THIRD_PARTY_AT_START[statement], f"{statement} imports {sorted(found)}"


def modules() -> Iterator[tuple[str, Path]]:
    """(part, file) of every module of the product."""
    for file in sorted((ROOT / "gkestimator").rglob("*.py")):
        relative = file.relative_to(ROOT / "gkestimator")
        if relative.as_posix() != "__init__.py":
            yield relative.parts[0].removesuffix(".py"), file
    for folder in ("profiling", "cli"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield folder, file


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in ``file``, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [a.name for a in node.names] if node.module == "gkestimator" else [""]
            yield from ((node.lineno, f"{node.module}.{name}".rstrip(".")) for name in names)


@pytest.mark.slow
def test_only_onnx_io_imports_onnx() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for part, file in modules()
        for line, name in imported(file)
        if name.partition(".")[0] == "onnx"
        and part not in ("onnx_io", "profiling")
        and "editing" not in file.parts
    ]
    assert not wrong


def test_every_part_has_a_layer() -> None:
    assert {part for part, _ in modules()} <= set(LEVEL)


@pytest.mark.slow
def test_dependencies_point_one_way() -> None:
    wrong = []
    for part, file in modules():
        for line, name in imported(file):
            parts = name.split(".")
            if parts[0] != "gkestimator" or len(parts) < 2 or parts[1] not in LEVEL:
                continue  # a third party, or a name of gkestimator itself such as __version__
            if parts[1] != part and LEVEL[parts[1]] > LEVEL[part]:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {part} imports {parts[1]}")
    assert not wrong


def test_a_module_reads_in_one_sitting() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for folder in ("gkestimator", "cli", "profiling", "tests", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > 450
    }
    assert not long


def test_helpers_beside_tests_have_names_of_their_own() -> None:
    """All folders of helpers are on the path at once, so a second module of one name would never be found."""
    helpers = [
        f.stem
        for f in (ROOT / "tests").rglob("*.py")
        if not f.stem.startswith(("test_", "__init__", "conftest"))
    ]
    assert sorted(helpers) == sorted(set(helpers))


def test_the_folders_of_helpers_are_on_the_path_and_no_test_puts_them_there() -> None:
    """``pythonpath`` in pyproject.toml is the one list of them."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"][
        "ini_options"
    ]
    folders = {
        file.parent.relative_to(ROOT).as_posix()
        for file in (ROOT / "tests").rglob("*.py")
        if not file.stem.startswith(("test_", "__init__", "conftest"))
        and "data" not in file.parts
        and not (file.parent / "__init__.py").exists()
    }
    assert set(options["pythonpath"]) == {"benchmarks", *folders}
    patching = re.compile(r"^\s*sys[.]path\b.*(=|append|insert|extend)", re.MULTILINE)
    patched = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("*.py")
        if "data" not in file.parts and patching.search(file.read_text(encoding="utf-8"))
    ]
    assert patched == []
