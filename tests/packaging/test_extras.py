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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gkestimator.core import extras
from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.interference.fitting import fit_interference
from gkestimator.jobs.ray_cluster import connected
from gkestimator.merging.algorithms import cheapest_assignment
from gkestimator.profiling.collectors import make_collector
from gkestimator.profiling.executors import make_executor
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler
from gkestimator.reporting.style import check_drawable
from gkestimator.serving.service import _ray
from gkestimator.simulation.requests import check_writable
from gkestimator.tables.writing import pyarrow_modules
from gkestimator.training.importers.files import read_columns
from gkestimator.training.train import _require_libraries

ROOT = Path(__file__).parents[2]
HINT = re.compile(r"(?:(?:gkestimator|'\.)\[|install_extra\(['\"])([\w,-]+)")
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


PRODUCT = [file for folder in ("gkestimator", "cli", "profiling") for file in (ROOT / folder).rglob("*.py")]


def test_one_function_says_how_an_extra_is_installed() -> None:
    spelled = [
        str(file.relative_to(ROOT))
        for file in PRODUCT
        if file.name != "extras.py" and re.search(r"pip install\b.{0,20}\[", file.read_text(encoding="utf-8"))
    ]
    assert spelled == []


MISSING: list[tuple[str, str, Callable[[], Any]]] = [
    ("matplotlib.figure", "plot", check_drawable),
    ("pyarrow", "parquet", pyarrow_modules),
    ("pyarrow", "parquet", lambda: check_writable("parquet")),
    ("pyarrow", "parquet", lambda: read_columns(Path("a.parquet"), ["a"])),
    ("scipy.optimize", "merge", lambda: cheapest_assignment(np.eye(2))),
    ("scipy", "train", lambda: fit_interference(())),
    ("scipy.stats", "train", lambda: ShapeSampler(np.random.default_rng(0)).unit(1, 2)),
    ("sklearn", "train", _require_libraries),
    ("xgboost", "train", _require_libraries),
    ("lightgbm", "train", _require_libraries),
    ("ray", "ray", lambda: connected().__enter__()),
    ("ray", "ray", lambda: _ray(None).__enter__()),
    ("torch", "profile", lambda: make_executor("torch", "cpu")),
    ("onnxruntime", "profile", lambda: make_executor("onnxruntime", "cpu")),
]


@pytest.mark.parametrize(("module", "extra", "call"), MISSING, ids=lambda v: v if isinstance(v, str) else "")
def test_what_needs_an_extra_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, module: str, extra: str, call: Callable[[], Any]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as caught:
        call()
    assert install_extra(extra) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kineto_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert install_extra("profile") in str(make_collector("kineto", "cpu").unavailable())


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (
            '{"url": "file:///home/me/my%20tree", "dir_info": {"editable": true}}',
            "pip install -e '/home/me/my tree[ray]'",
        ),
        ('{"url": "file:///home/me/tree", "dir_info": {}}', "pip install 'gkestimator[ray]'"),
        ('{"url": "file:///w.whl", "archive_info": {}}', "pip install 'gkestimator[ray]'"),
        (None, "pip install 'gkestimator[ray]'"),
        ("[]", "pip install 'gkestimator[ray]'"),
        ("no JSON", "pip install 'gkestimator[ray]'"),
    ],
)
def test_the_command_is_true_of_this_installation(
    monkeypatch: pytest.MonkeyPatch, recorded: str | None, command: str
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return recorded

    monkeypatch.setattr(extras.metadata, "distribution", lambda name: Distribution())
    assert install_extra("ray") == command
