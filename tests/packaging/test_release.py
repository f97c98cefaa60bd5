"""A release: one version, a checklist that refuses what is not ready, a citation, a container, licences by file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import gkestimator

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
READY_LOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2026-12-24)\n\n- All of it.\n\n## 1.2.2 (2026-12-01)\n\n- Less.\n"


def git(tree: Path, *words: str) -> None:
    author = ("-c", "user.name=tests", "-c", "user.email=tests@example.com")
    subprocess.run(["git", *author, *words], cwd=tree, check=True, capture_output=True)


def released(tree: Path, *, changelog: str = READY_LOG) -> Path:
    """Commit a tree of version 1.2.3 that has the checklist, and return it."""
    (tree / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release", tree / ".ci/release")
    (tree / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.3"\n', encoding="utf-8")
    (tree / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all")
    return tree


def ready(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [".ci/release", "--ready"], cwd=tree, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_tree_that_is_ready_is_said_to_be(tmp_path: Path) -> None:
    assert ready(released(tmp_path)) == (0, "ready: version 1.2.3\n")


@pytest.mark.parametrize(
    ("changelog", "reason"),
    [
        (
            READY_LOG.replace("1.2.3 (2026-12-24)", "1.2.30 (2026-12-24)"),
            "no heading '## 1.2.3 (YYYY-MM-DD)'",
        ),
        (READY_LOG.replace("1.2.3 (2026-12-24)", "1.2.3"), "no heading '## 1.2.3 (YYYY-MM-DD)'"),
        (READY_LOG.replace("Unreleased\n", "Unreleased\n\n### Added\n- More.\n"), "lines under 'Unreleased'"),
    ],
    ids=["other version", "no date", "unreleased lines"],
)
def test_a_changelog_without_the_version_is_refused(tmp_path: Path, changelog: str, reason: str) -> None:
    status, words = ready(released(tmp_path, changelog=changelog))
    assert status == 1
    assert words.startswith("not ready: CHANGELOG.md: ") and reason in words
    assert len(words.splitlines()) == 1


def test_a_tag_that_exists_is_refused(tmp_path: Path) -> None:
    tree = released(tmp_path)
    git(tree, "tag", "v1.2.3")
    assert ready(tree) == (
        1,
        "not ready: git: the tag v1.2.3 exists already; raise version in pyproject.toml\n",
    )


def test_a_file_that_is_not_committed_is_refused(tmp_path: Path) -> None:
    tree = released(tmp_path)
    (tree / "new.txt").write_text("new", encoding="utf-8")
    assert ready(tree) == (1, "not ready: git: files that are not committed\n")


def test_an_unknown_option_of_the_checklist_is_refused() -> None:
    done = subprocess.run(
        [ROOT / ".ci/release", "--all"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == "usage: .ci/release [--rehearse | --ready]\n"


def test_the_version_stands_in_one_place() -> None:
    version = PROJECT["project"]["version"]
    assert gkestimator.__version__ == version
    stated = [
        file.relative_to(ROOT)
        for pattern in (
            "CITATION.cff",
            "Dockerfile",
            "gkestimator/**/*.py",
            "cli/**/*.py",
            "profiling/**/*.py",
        )
        for file in ROOT.glob(pattern)
        if re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", file.read_text(encoding="utf-8"))
    ]
    assert stated == []


def test_the_citation_says_what_the_project_says() -> None:
    """`.ci/release` validates the file by its schema; here its facts are compared."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["title"] == PROJECT["project"]["name"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["keywords"] == PROJECT["project"]["keywords"]


def dockerfile() -> list[tuple[str, list[str]]]:
    """Return the Dockerfile's instructions with their words, in order."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [(words[0], words[1:]) for words in lines]


def copied_into_the_image() -> set[str]:
    """Return the paths of the checkout that the Dockerfile copies."""
    copies = [words for instruction, words in dockerfile() if instruction == "COPY"]
    return {path for words in copies if not words[0].startswith("--") for path in words[:-1]}


def test_the_image_is_built_from_what_the_package_needs() -> None:
    folders = {folder.split("/")[0] for folder in PROJECT["tool"]["setuptools"]["package-dir"].values()}
    licences = {file for file in PROJECT["project"]["license-files"] if "/" not in file}
    assert copied_into_the_image() == {"pyproject.toml", PROJECT["project"]["readme"], *licences, *folders}


def test_the_build_context_is_what_the_image_copies() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copied_into_the_image()
    assert "*" in lines


def test_the_image_runs_gkest_and_not_as_root() -> None:
    last = dict(dockerfile())
    assert last["ENTRYPOINT"] == ['["gkest"]']
    assert int(last["USER"][0]) > 0
    instructions = [instruction for instruction, _ in dockerfile()]
    assert instructions.index("USER") > max(
        i for i, name in enumerate(instructions) if name in ("FROM", "RUN")
    )


def test_the_image_is_slim_and_of_a_python_that_is_supported() -> None:
    version = dict(dockerfile())["ARG"][0].removeprefix("PYTHON=")
    bases = [words[0] for instruction, words in dockerfile() if instruction == "FROM"]
    assert f"Programming Language :: Python :: {version}" in PROJECT["project"]["classifiers"]
    assert bases == ["python:${PYTHON}-slim"] * 2


def test_every_source_that_a_regressor_learned_from_has_its_licence_on_the_page() -> None:
    card = json.loads((ROOT / "models/default/card.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8")
    named = dict(re.findall(r"^\| `(\w+)` \| .* \| ([\w.-]+) \|$", page, flags=re.M))
    sources = {name.split("/")[0] for model in card["models"] for name in model["counts"]}
    assert set(named) == sources
    assert set(named.values()) <= {"MIT", "Apache-2.0"}


def test_every_folder_of_data_and_every_bundled_file_is_on_the_page_of_licences() -> None:
    page = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8")
    folders = [f"datasets/{folder.name}" for folder in (ROOT / "datasets").iterdir() if folder.is_dir()]
    bundles = [f"models/{folder.name}" for folder in (ROOT / "models").iterdir() if folder.is_dir()]
    assets = ROOT / "gkestimator/reporting/page"
    foreign = [f.name for f in (*assets.glob("*.min.js"), *assets.glob("*-*.txt"))]
    assert len(foreign) >= 5
    wanted = [name for name in (*folders, *bundles, *foreign) if not name.endswith("__pycache__")]
    assert [name for name in wanted if name not in page] == []


def test_the_notice_names_the_version_of_echarts_that_is_bundled() -> None:
    source = (ROOT / "gkestimator/reporting/page/echarts.min.js").read_text(encoding="utf-8")
    (version,) = set(re.findall(r'version="(\d+\.\d+\.\d+)"', source))
    for page in ("NOTICE", "docs/reference/licences.md"):
        assert f"ECharts {version}" in (ROOT / page).read_text(encoding="utf-8")
