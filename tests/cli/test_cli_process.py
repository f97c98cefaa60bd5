"""The real process: a closed pipe, a full device, the time of --help."""

from __future__ import annotations

import subprocess
import sys
import time

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


def test_help_is_fast() -> None:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([*GKEST, "--help"], check=True, stdout=subprocess.DEVNULL, timeout=60)
        seconds.append(time.perf_counter() - start)
    print(f"gkest --help: {min(seconds):.3f} s, expected at most 0.3 s")
    assert min(seconds) <= 0.3  # the fastest of five: the program's own time, not a busy machine's


def test_version() -> None:
    done = subprocess.run([*GKEST, "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("gkest ")
