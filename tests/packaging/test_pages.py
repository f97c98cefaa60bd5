"""Hold the pages that explain the code to the code: what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "docs/how-to/extending.md",
    "docs/glossary.md",
    "docs/reference/licences.md",
    "docs/how-to/releasing.md",
)
ALL_PAGES = (
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
# The worked examples of CONTRIBUTING.md are files that only tests write.
NOT_THERE = re.compile(r"newcomer|NEWCOMER|NAME|<|FILE")
MOST_WORDS = 1_700


@pytest.mark.parametrize("page", PAGES)
def test_paths_named_in_a_page_exist(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    named = set(
        re.findall(
            r"`((?:gkestimator|profiling|cli|tests|benchmarks|datasets|docs|examples|models)/[^`\s*{]*)`",
            text,
        )
    )
    missing = [path for path in sorted(named) if not NOT_THERE.search(path) and not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_between_pages_hold(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text)
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert missing == []


def test_functions_named_in_the_walks_stand_in_the_file_named_with_them() -> None:
    """A walk says: `name` (`path`); the name is defined in that file."""
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split())
    named = re.findall(r"`([A-Za-z_][\w.]*)` \(`([\w/]+\.py)`", text)
    assert len(named) > 15
    missing = []
    for name, path in named:
        file = ROOT / path if (ROOT / path).exists() else ROOT / "gkestimator" / path
        source = file.read_text(encoding="utf-8")
        if not re.search(rf"(def|class) {re.escape(name.rpartition('.')[2])}\b", source):
            missing.append(f"{name} in {path}")
    assert missing == []


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_pages_for_newcomers_are_short(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_every_room_has_its_line_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = [init.parent.name for init in (ROOT / "gkestimator").glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}`" not in text] == []
