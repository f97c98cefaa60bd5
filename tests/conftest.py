"""What tests of several parts share."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell lets what it starts in the background ignore Ctrl-C, and children inherit that: the tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

FIRST_FIT = Path(__file__).parent / "data" / "first_fit" / "first_fit.py"


@pytest.fixture
def first_fit(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an installed third-party policy ``first-fit``: its module and its metadata, found by importlib.metadata."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(FIRST_FIT, site)
    metadata = site / "first_fit_policy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: first-fit-policy\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gkestimator.policies]\nfirst-fit = first_fit:FirstFit\n")
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("first_fit", None)
