"""The ncu_report that comes with an installed ncu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gkestimator.profiling.parsers.ncu import shipped_readers
from gkestimator.profiling.parsers.ncu_child import NOT_INSTALLED


@pytest.mark.slow
def test_the_library_that_comes_with_ncu_is_found_where_none_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extras = tmp_path / "2025.3.1" / "extras" / "python"
    extras.mkdir(parents=True)
    (extras / "ncu_report.py").write_text("")
    tool = tmp_path / "2025.3.1" / "ncu"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "ncu").symlink_to(tool)
    monkeypatch.setenv("GKEST_NCU", str(tmp_path / "ncu"))
    assert shipped_readers() == (extras,)
    (extras / "stand_in_reader.py").write_text("def load_report(path): raise SystemExit(f'reads {path}')")
    code = (
        "import sys; from gkestimator.profiling.parsers import ncu_child; ncu_child._LIBRARY = 'stand_in_reader'; "
        "sys.exit(ncu_child.main(sys.argv[1:]))"
    )
    for folders, status in ((shipped_readers(), 1), ((), NOT_INSTALLED)):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, "a.ncu-rep", *map(str, folders)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert ("reads a.ncu-rep" in done.stderr) is bool(folders)
