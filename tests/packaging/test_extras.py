"""The extras that messages and pages tell people to install exist, and pip reads them from the installed package.

gkestimator is on no package index: ``pip install 'gkestimator[merge]'`` works because pip finds the package where it is
installed, from a checkout or a wheel, and fetches nothing but what the extra needs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HINT = re.compile(r"(?:gkestimator|'\.)\[([\w,-]+)\]")
TEXTS = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(file for folder in ("gkestimator", "cli", "profiling") for file in (ROOT / folder).rglob("*.py")),
]


def test_every_extra_that_is_named_exists() -> None:
    extras = set(importlib.metadata.metadata("gkestimator").get_all("Provides-Extra") or [])
    named = {
        extra: text.relative_to(ROOT)
        for text in TEXTS
        for extras_of_hint in HINT.findall(text.read_text(encoding="utf-8"))
        for extra in extras_of_hint.split(",")
    }
    assert {"train", "plot", "merge"} <= set(named)
    assert {extra: str(text) for extra, text in named.items() if extra not in extras} == {}


def test_every_hint_is_a_command_that_any_shell_takes_as_it_stands() -> None:
    """A shell may read [plot] as a pattern of file names; a hint therefore stands in quotes."""
    bare = [
        str(text.relative_to(ROOT))
        for text in TEXTS
        if re.search(r"pip install (?:-\S+ )*(?:gkestimator|\.)\[", text.read_text(encoding="utf-8"))
    ]
    assert bare == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")
def test_pip_takes_an_extra_from_the_installed_package() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "gkestimator[merge]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied: gkestimator[merge]" in done.stdout
