"""Every benchmark is on docs/appendix/benchmarks.md and says in one line what it is for; every benchmark that is named exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
PROGRAMS = [f for f in FILES if not f.name.startswith("_") and f.parent.name in ("benchmarks", "papers")]
NAMED = re.compile(r"benchmarks/[\w/]+\.py")
# Words with which a summary begins that says no verb.
VERBLESS = {
    "A",
    "An",
    "The",
    "Of",
    "What",
    "Whether",
    "Where",
    "How",
    "By",
    "As",
    "Under",
    "With",
    "In",
    "On",
    "At",
    "Every",
}
TEXTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(ROOT / "docs").rglob("*.md"),
    *(
        f
        for folder in ("gkestimator", "cli", "profiling", "tests", "benchmarks")
        for f in (ROOT / folder).rglob("*.py")
    ),
]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_a_benchmark_says_in_one_line_what_it_is_for(file: Path) -> None:
    first = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    assert first and "\n" not in first, "the first paragraph is one line"
    assert first.split()[0] not in VERBLESS
    assert re.match(r"[A-Z][a-z]+\b(?!:)", first), "it begins with a verb"


def test_the_page_lists_every_program() -> None:
    page = (ROOT / "docs" / "appendix/benchmarks.md").read_text(encoding="utf-8")
    listed = set(NAMED.findall("\n".join(line for line in page.splitlines() if line.startswith("| `"))))
    assert listed == {file.relative_to(ROOT).as_posix() for file in PROGRAMS}
    assert "| `python -m benchmarks.accuracy" in page


def test_every_benchmark_that_is_named_exists() -> None:
    lost = [
        f"{text.relative_to(ROOT)}: {name}"
        for text in TEXTS
        for name in NAMED.findall(text.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert lost == []
