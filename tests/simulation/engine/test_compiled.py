"""With numba, without it, and where its machine code cannot be kept: the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gkestimator.core.compiled import COMPILED, when_compiling
from gkestimator.simulation.engine import part

HERE = Path(__file__).parent
# Prints a digest of all that was counted, whether numba was there, and whether code was compiled or found.
PROGRAM = """
import sys
if {hidden!r}:
    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "numba":
                raise ModuleNotFoundError("hidden", name=name)
    sys.modules.pop("numba", None)
    import importlib.util
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "numba" else found(name, package)
    sys.meta_path.insert(0, Hidden())
import hashlib
from _runs import content, run
from test_chunks import Cut, mixed, times
digest = hashlib.sha256()
for routing in ("round-robin", "least-load"):
    for service in ("deterministic", "exponential", "interval"):
        options = {{"routing": routing, "service": service, "interference": "contention", "seed": 5}}
        digest.update(content(run(mixed(), Cut(times(7, 60), [100.0, 500.0]), **options)))
from gkestimator.simulation.engine.loop import run as loop
hits = sum(loop.stats.cache_hits.values()) if hasattr(loop, "stats") else None
print(digest.hexdigest(), "numba" in sys.modules, hits)
"""


def outcome(hidden: bool = False, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(hidden=hidden)],
        env={**os.environ, "PYTHONPATH": str(HERE), **environment},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.fixture(scope="module")
def plain() -> str:
    digest, numba, _ = outcome(hidden=True)
    assert numba == "False"
    return digest


needs_numba = pytest.mark.skipif(not COMPILED, reason="numba (extra simulate) is not installed")


@pytest.mark.slow
@needs_numba
def test_compiled_is_plain_and_kept(plain: str) -> None:
    assert outcome()[:2] == [plain, "True"]
    # The next process finds the machine code.
    assert outcome() == [plain, "True", "1"]


@pytest.mark.slow
@needs_numba
def test_switched_off_is_plain(plain: str) -> None:
    assert outcome(NUMBA_DISABLE_JIT="1")[0] == plain


def double(sources: str) -> Callable[[int], int]:
    def enter(number: int) -> int:
        sources  # noqa: B018
        return 2 * number

    return enter


@needs_numba
def test_compiles_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the package's folder nor the user's cache can be written: numba knows no place then."""
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    found = part.entry(double)
    assert found(21) == 42
    assert not found.stats.cache_path  # type: ignore[attr-defined]


@needs_numba
def test_new_sources_are_compiled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """numba looks at the file of the entry alone; the digest of all sources is in the key of what it keeps."""
    from numba.core import config

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    hits, told = [], list[str]()
    for sources in ("old", "old", "new"):
        monkeypatch.setattr(part, "_sources", lambda said=sources: said)
        found = part.entry(double)
        with when_compiling(lambda said=sources: told.append(said)):  # type: ignore[misc]
            assert [found(21), found(21)] == [42, 42]
        hits.append(sum(found.stats.cache_hits.values()))  # type: ignore[attr-defined]
    assert hits == [0, 1, 0]
    # Who waits for it is told, once, and not where the machine code was kept.
    assert told == ["old", "new"]
