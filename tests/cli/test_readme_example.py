"""What the README and the first hour show is what the program prints today; the README is short, and true to the accuracy report."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from walking import is_current, refresh_module

ROOT = Path(__file__).parents[2]


def compare(module: ModuleType, page: str, folder: Path | None) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert module.NAMED.search(text)
    is_current(text, module.refreshed(text, folder))


def test_the_list_of_gpus_is_current() -> None:
    compare(refresh_module(), "docs/reference/gpus.md", None)


@pytest.mark.slow
def test_the_evaluation_example_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "gkest-home"))
    module = refresh_module()
    compare(module, "docs/how-to/evaluate.md", module.evaluate_folder(tmp_path))


@pytest.mark.slow
def test_the_picture_of_the_readme_is_one_that_the_program_draws(tmp_path: Path) -> None:
    module = refresh_module()
    assert f"]({module.PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert module.PICTURE.stat().st_size < 150_000
    pytest.importorskip("matplotlib")
    module.output_of(f"{module.PICTURE_COMMAND} drawn.png", tmp_path)
    for file in (module.PICTURE, tmp_path / "drawn.png"):
        assert file.read_bytes().startswith(b"\x89PNG")


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
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
