"""The site of the documentation: every page stands in its navigation, it builds strictly, and asks nothing of a network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "mkdocs.yml"
FETCHED = re.compile(r"""<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=["']?(https?:)?//""")


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for inner in nav.values() if isinstance(nav, dict) else nav:
        yield from pages(inner)


def test_every_page_stands_once_in_the_navigation() -> None:
    named = [page for page in pages(yaml.safe_load(CONFIG.read_text())["nav"]) if page != "generated"]
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    outside = {page.removeprefix("repository/") for page in named if page.startswith("repository/")}
    assert len(named) == len(set(named))
    assert written <= set(named)
    assert all((ROOT / page).exists() for page in outside)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(CONFIG),
        "-d",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_no_page_fetches_anything_from_outside(site: Path) -> None:
    html = list(site.rglob("*.html"))
    assert len(html) > 80
    assert [
        str(page.relative_to(site)) for page in html if FETCHED.search(page.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.slow
def test_the_reference_is_made_of_the_code(site: Path) -> None:
    import gkestimator
    from gkestimator.cli.group import COMMANDS
    from gkestimator.library.schemas.registry import KINDS

    commands = {
        page.stem.removeprefix("gkest-") for page in (site / "reference/commands").glob("gkest-*.html")
    }
    assert set(COMMANDS) <= commands and "profile-plan" in commands
    assert {page.stem for page in (site / "reference/file-formats").glob("*.html")} == set(KINDS)
    library = (site / "reference/library/gkestimator.html").read_text(encoding="utf-8")
    missing = [name for name in gkestimator.__all__ if f'id="gkestimator.{name}"' not in library]
    assert set(missing) <= {"__version__", "errors"}
    assert "TableError" in library and "one_line" not in library
    cluster = (site / "reference/file-formats/cluster.html").read_text(encoding="utf-8")
    assert "elastic[].price_per_hour" in cluster


@pytest.mark.slow
def test_links_that_leave_the_documentation_lead_to_copies(site: Path) -> None:
    page = (site / "how-to/diff.html").read_text(encoding="utf-8")
    assert 'href="../repository/examples/ci/gkest-diff.yml"' in page
    assert (site / "repository/examples/ci/gkest-diff.yml").exists()
    architecture = (site / "repository/ARCHITECTURE.html").read_text(encoding="utf-8")
    assert 'href="../decisions.html"' in architecture


@pytest.mark.slow
def test_search_knows_commands_and_terms(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {document["title"] for document in index["docs"]}
    assert {"gkest choose", "Glossary"} <= found


@pytest.mark.slow
def test_a_page_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    (tmp_path / "docs").mkdir()
    config = yaml.safe_load(CONFIG.read_text())
    kept = {key: config[key] for key in ("strict", "validation", "use_directory_urls")}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump({"site_name": "x", "nav": ["index.md"], **kept}))
    for text, words in (("[a](b.md)", "b.md"), ("[a](#b)", "#b"), ("[a](/b)", "/b")):
        (tmp_path / "docs" / "index.md").write_text(f"# A\n\n{text}\n")
        command = [sys.executable, "-m", "mkdocs", "build", "-f", str(tmp_path / "mkdocs.yml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode != 0 and words in done.stderr + done.stdout
    (tmp_path / "docs" / "index.md").write_text("# A\n")
    (tmp_path / "docs" / "alone.md").write_text("# B\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode != 0 and "alone.md" in done.stderr + done.stdout
