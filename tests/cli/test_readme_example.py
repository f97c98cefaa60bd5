"""The README's worked example is what the program prints today, and its two commands are the documented ones."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def skeleton(text: str) -> str:
    """``text`` without its figures and spacing: another processor's last digit may round the other way."""
    return " ".join(NUMBER.sub("#", text).split())


def numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in NUMBER.findall(text)]


def refresh() -> ModuleType:
    """docs/refresh_readme.py as a module."""
    loading = importlib.util.spec_from_file_location("refresh_readme", ROOT / "docs" / "refresh_readme.py")
    assert loading is not None
    assert loading.loader is not None
    module = importlib.util.module_from_spec(loading)
    loading.loader.exec_module(module)
    return module


def compare(module: ModuleType, page: Path, folder: Path | None) -> None:
    text = page.read_text(encoding="utf-8")
    assert module.BLOCK.search(text)
    for found in module.BLOCK.finditer(text):
        expected = module.output_of(found["arguments"], folder)
        assert skeleton(found["output"]) == skeleton(expected), "run: python docs/refresh_readme.py"
        assert numbers(found["output"]) == pytest.approx(numbers(expected), rel=0.01, abs=0.11)


@pytest.mark.slow
def test_the_worked_example_is_current() -> None:
    compare(refresh(), ROOT / "README.md", None)


def test_the_list_of_gpus_is_current() -> None:
    compare(refresh(), ROOT / "docs" / "reference/gpus.md", None)


@pytest.mark.slow
def test_the_evaluation_example_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "gkest-home"))
    module = refresh()
    compare(module, ROOT / "docs" / "how-to/evaluate.md", module.evaluate_folder(tmp_path))


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "pytest -q -n 2 tests" in readme
    assert 'pytest" -q -n 2 tests' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_says_the_errors_of_the_accuracy_report() -> None:
    """The sentence of "How far to trust it" holds the whole models' rows of the table between the summary marks."""
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- summary -->\n(.*?)<!-- /summary -->", page, re.DOTALL)
    assert table is not None
    rows = [line.strip("| ").split(" | ") for line in table[1].splitlines() if "| whole models" in line]
    (trained, trained_roofline), (untrained, untrained_roofline) = [
        [figures.split(" / ") for figures in row[2:]] for row in rows
    ]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"off by {trained[0]} % in the median, {trained[1]} % in the mean" in readme
    assert f"by {untrained[0]} % and {untrained[1]} %" in readme
    assert f"off by {trained_roofline[0]} % and {untrained_roofline[0]} % in the median" in readme


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 1500
