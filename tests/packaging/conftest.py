"""A clean copy of the tree and the wheel and source distribution built from it, once for all packaging tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = (
    "gkestimator",
    "profiling",
    "cli",
    "datasets",
    "models",
    "docs",
    "examples",
    "benchmarks",
    "tests",
    ".ci",
    ".github",
)
FILES = (
    *(file.name for file in ROOT.glob("*.md")),
    "pyproject.toml",
    "LICENSE",
    "NOTICE",
    "MANIFEST.in",
    "CITATION.cff",
    "Dockerfile",
    "mkdocs.yml",
)


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with one wheel and one source distribution. The copy keeps ``build/`` out of the checkout and the wheel."""
    tree = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("dist")
    for kind in ("sdist", "wheel"):
        code = f"import setuptools.build_meta as b, sys; b.build_{kind}(sys.argv.pop())"
        command = [sys.executable, "-c", code, str(out)]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    return out
