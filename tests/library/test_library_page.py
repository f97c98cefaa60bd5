"""docs/how-to/library.md, word by word: its blocks run in order and print what stands below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from python_page import PAGE, outputs

pytest.importorskip("matplotlib")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def skeleton(text: str) -> str:
    """``text`` without its figures and spacing: another processor's last digit may round the other way."""
    return " ".join(NUMBER.sub("#", text).split())


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


@pytest.mark.slow
def test_the_page_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))
    blocks = outputs(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 8
    for block, printed in blocks:
        shown = block[3] or ""
        assert skeleton(shown) == skeleton(printed), "run: python tests/library/python_page.py"
        assert numbers(shown) == pytest.approx(numbers(printed), rel=0.02, abs=0.11)
    written = {
        path.relative_to(tmp_path).as_posix() for path in (tmp_path / "try").rglob("*") if path.is_file()
    }
    assert {"try/needs.png", "try/needs.html", "try/plan.json", "try/deploy/kai/deployments.yaml"} <= written


def test_the_page_is_read_in_one_sitting() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) < 1_500
