"""Runtimes: a new one is its record, an entry and its figures, and then every command knows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import gkestimator
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import TENSORRT
from gkestimator.hardware.runtimes import RUNTIMES, runtime_traits, runtime_words, served_as
from gkestimator.hardware.runtimes.profiles import DTYPE_WORDS, load_runtime, runtime_names
from gkestimator.lowering.patterns import PATTERNS
from gkestimator.profiling.executors import EXECUTORS
from gkestimator.profiling.sweep.cost import COSTS

PACKAGE = Path(gkestimator.__file__).parent
ROOTS = {name: Path(str(files(f"gkestimator.{name}"))) for name in ("profiling", "cli", "datasets", "models")}


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_record_names_what_is_there(name: str) -> None:
    traits = runtime_traits(name)
    assert traits.name == name == load_runtime(name).name
    assert traits.patterns <= {pattern.name for pattern in PATTERNS}
    assert traits.operators_as in RUNTIMES
    assert traits.lowers_as in RUNTIMES
    assert set(traits.lacking_dtypes) <= set(DTYPE_WORDS)
    if traits.executor is None:
        assert traits.measured_by
        assert name not in EXECUTORS
    else:
        module, executor = EXECUTORS[name]
        assert getattr(import_module(module), executor).name == name
        assert COSTS[name].prepare_s == traits.sweep_prepare_s


def test_records_and_figures_are_of_the_same_runtimes_and_no_pattern_is_unused() -> None:
    assert set(runtime_names()) == set(RUNTIMES)
    assert {p.name for p in PATTERNS} == {name for traits in RUNTIMES.values() for name in traits.patterns}
    assert {traits.library for traits in RUNTIMES.values()} == {"", TENSORRT}
    *others, last = RUNTIMES
    assert runtime_words() == f"{', '.join(others)} or {last}"


def test_an_unknown_runtime_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(UsageError, match=f"runtime 'jax': expected one of {', '.join(sorted(RUNTIMES))}"):
        runtime_traits("jax")
    assert served_as("jax").name == served_as("torch").name == "onnxruntime"


def test_no_list_of_runtimes_stands_elsewhere() -> None:
    both = re.compile(r"""["']torch["'],\s*["']onnxruntime["']|["']onnxruntime["'],\s*["']torch["']""")
    sources = [path for root in (PACKAGE, *ROOTS.values()) for path in root.rglob("*.py")]
    # Traits of an operator say in which runtimes they hold; a further runtime names one of those (operators_as).
    sources = [path for path in sources if "operators" not in path.parts]
    assert len(sources) > 300
    assert [path.name for path in sources if both.search(path.read_text(encoding="utf-8"))] == []


def test_nobody_compares_names_of_runtimes() -> None:
    """Whoever wants to know what a runtime does asks its record; rules of operators and their lowering alone name it."""
    compared = re.compile(
        rf"""(?:==|!=)\s*["'](?:{"|".join(RUNTIMES)})["']|\bruntime\w*\s+(?:not )?in [({{][\"']"""
    )
    assert compared.search('if graph.runtime != "torch"') and compared.search("row.runtime in ('a', b)")
    found = []
    for root in (PACKAGE, *ROOTS.values()):
        for path in root.rglob("*.py"):
            apart = {"operators", "lowering", "executors"} & set(path.parts)
            lines = [] if apart else path.read_text(encoding="utf-8").splitlines()
            found += [(path.name, line.strip()) for line in lines if compared.search(line)]
    # The name of a module that is lacking, not of a runtime.
    assert found == [("checking.py", 'if isinstance(e, ModuleNotFoundError) and e.name == "onnxruntime":')]


@pytest.fixture
def copy_with_a_runtime(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package that knows a third runtime, ``thirdruntime``."""
    package = tmp_path / "gkestimator"
    shutil.copytree(PACKAGE, package)
    for name, root in ROOTS.items():
        shutil.copytree(root, package / name, dirs_exist_ok=True)
    traits = package / "hardware" / "runtimes"
    record = (traits / "onnxruntime.py").read_text(encoding="utf-8").replace("ONNXRUNTIME", "THIRD")
    record = record.replace("import RuntimeTraits", "import RuntimeTraits, ServerForm").replace(
        "0.06", "0.07"
    )
    record = record.replace(
        'name="onnxruntime"', 'name="thirdruntime", server=ServerForm(accelerator="third")'
    )
    record = record.replace('provider_of=("onnxruntime", "cuda")', 'provider_of=("onnxruntime", "third")')
    (traits / "third.py").write_text(record, encoding="utf-8")
    registry = (traits / "__init__.py").read_text(encoding="utf-8")
    entry = registry.replace("_ENTRIES = (TORCH, ", "_ENTRIES = (TORCH, THIRD, ").replace(
        "from gkestimator.hardware.runtimes.torch", "from gkestimator.hardware.runtimes.third import THIRD\n"
        "from gkestimator.hardware.runtimes.torch"
    )  # fmt: skip
    (traits / "__init__.py").write_text(entry, encoding="utf-8")
    figures = package / "datasets" / "runtimes"
    text = (
        (figures / "onnxruntime.toml")
        .read_text(encoding="utf-8")
        .replace('name = "onnxruntime"', 'name = "thirdruntime"')
    )
    (figures / "thirdruntime.toml").write_text(text, encoding="utf-8")
    return tmp_path


def write_model(path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def run(folder: Path, *arguments: str) -> str:
    code = "import sys; from gkestimator.cli import run; run(sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": str(folder), "GKEST_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_new_runtime_is_a_record_an_entry_and_its_figures(copy_with_a_runtime: Path) -> None:
    folder = copy_with_a_runtime
    assert "|".join(sorted([*RUNTIMES, "thirdruntime"])) in run(folder, "estimate", "--help")
    write_model(folder / "model.onnx")
    run(folder, "estimate", "model.onnx", "--gpu", "T4", "--runtime", "thirdruntime", "-o", "rows.csv")
    assert "thirdruntime" in (folder / "rows.csv").read_text(encoding="utf-8")
    by_provider = ("--runtime", "onnxruntime", "--provider", "third")
    assert "thirdruntime" in run(folder, "estimate", "model.onnx", "--gpu", "T4", *by_provider)
    (folder / "cluster.yaml").write_text("gpus: [{type: T4, count: 1}]\n")
    asked = ("--quick", "model:20rps@100ms", "--cluster", "cluster.yaml")
    run(folder, "schedule", "rows.csv", *asked, "-o", "placed.json")
    assert '"thirdruntime"' in (folder / "placed.json").read_text(encoding="utf-8")
    run(folder, "simulate", "placed.json", "--table", "rows.csv", "--duration-s", "1", "-o", "served.json")
    run(folder, "export", "placed.json", "--to", "triton", "-o", "out")
    (config,) = (folder / "out").rglob("config.pbtxt")
    assert 'name: "third"' in config.read_text(encoding="utf-8")
    assert "thirdruntime" in run(folder, "profile", "run", "--help")
    run(folder, "profile", "plan", "--runtime", "thirdruntime", "--minutes", "1", "-o", "plan.json")
    assert '"thirdruntime"' in (folder / "plan.json").read_text(encoding="utf-8")
