"""The real process: a closed pipe, a full device, the time of --help."""

from __future__ import annotations

import subprocess
import sys

GKEST = [sys.executable, "-c", "from gkestimator.cli import main; main()"]


def test_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen([*GKEST, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 0


def test_a_full_device_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*GKEST, "doctor"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("gkest: error: ")
    assert done.stderr.count(b"\n") == 1, done.stderr


def test_version() -> None:
    done = subprocess.run([*GKEST, "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("gkest ")
