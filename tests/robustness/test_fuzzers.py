"""A few cases of every fuzzer of benchmarks/fuzz: whole runs of tens of thousands are in docs/appendix/fuzzing.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.targets import SHARES  # benchmarks/ is on the path

ROOT = Path(__file__).parents[2]
CASES = 30


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_no_case_ends_in_a_traceback_or_costs_too_much(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", "--only", name, "--cases", str(CASES), "--jobs", "1",
         "--seconds", "200"],
        check=False, capture_output=True, text=True, timeout=900, cwd=ROOT,
        env={**os.environ, "GKEST_FUZZ_SEEDS": "few", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{CASES} cases in" in done.stdout
