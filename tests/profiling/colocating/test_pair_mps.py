"""The daemon as it is called, by a stand-in that notes it; what the stand-in does is what NVIDIA's documentation says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pretend_machine import UUID, alive, mps_script

from gkestimator.profiling.colocating.mps import BINARY, MpsDaemon, MpsError, client_environment, find_mps


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def daemon_pid(calls: Path) -> int:
    return int(calls.read_text().split("daemon ")[1].split()[0])


def started(tmp_path: Path, script: Path) -> MpsDaemon:
    place = tmp_path / "place"
    place.mkdir()
    return MpsDaemon(script, place, gpu_uuid=UUID, tick=lambda: None)


def test_started_asked_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7")
    daemon = started(tmp_path, mps_script(tmp_path))
    calls = tmp_path / "calls"
    pid = daemon_pid(calls)
    assert alive(pid)
    assert daemon.servers() == (4711,)
    (tmp_path / "idle").touch()
    assert daemon.servers() == ()
    daemon.stop()
    assert until(lambda: not alive(pid))
    lines = calls.read_text().splitlines()
    pipes, logs = tmp_path / "place" / "pipe", tmp_path / "place" / "log"
    # Its own folders, nobody else's GPU, and no limit that was meant for another.
    assert lines[0] == f"-d pipe={pipes} log={logs} gpu={UUID} share="
    assert lines[1:3] == ["700", "700"]
    assert [line for line in lines if line.startswith("asked")] == [
        "asked get_server_list", "asked get_server_list", "asked quit -t 5"
    ]  # fmt: skip


@pytest.mark.slow
def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    with pytest.raises(MpsError, match=r"-d: status 1: Cannot start: permission denied"):
        started(tmp_path, mps_script(tmp_path))
    script = tmp_path / "other" / BINARY
    script.parent.mkdir()
    script.write_text("not a program")
    script.chmod(0o755)
    (tmp_path / "place").rmdir() if not any((tmp_path / "place").iterdir()) else None
    place = tmp_path / "second"
    place.mkdir()
    with pytest.raises(MpsError, match="-d: cannot be started: Exec format error"):
        MpsDaemon(script, place, gpu_uuid=None, tick=lambda: None)


def test_stopped_while_it_starts(tmp_path: Path) -> None:
    def stop() -> None:
        raise InterruptedError

    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(InterruptedError):
        MpsDaemon(mps_script(tmp_path), place, gpu_uuid=UUID, tick=stop)
    calls = tmp_path / "calls"
    # Whether it had come to start the daemon or not: none is left.
    assert (
        not calls.exists() or "daemon" not in calls.read_text() or until(lambda: not alive(daemon_pid(calls)))
    )


def test_ends_with_its_owner_even_when_that_is_killed(tmp_path: Path) -> None:
    script = mps_script(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    code = (
        "import sys, time; from pathlib import Path\n"
        "from gkestimator.profiling.colocating.mps import MpsDaemon\n"
        "d = MpsDaemon(Path(sys.argv[1]), Path(sys.argv[2]), gpu_uuid=None, tick=lambda: None)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(script), str(place)], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None and owner.stdout.readline() == b"up\n"
    pid = daemon_pid(tmp_path / "calls")
    assert alive(pid)
    owner.kill()
    owner.wait()
    assert until(lambda: not alive(pid))


def test_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = mps_script(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_mps() == script


def test_what_clients_are_told() -> None:
    base = {"PATH": "/bin", "CUDA_MPS_PIPE_DIRECTORY": "/theirs", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    assert client_environment(base, Path("/ours"), 20.0) == {
        "PATH": "/bin", "CUDA_MPS_PIPE_DIRECTORY": "/ours", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"
    }  # fmt: skip
    assert client_environment(base, Path("/ours")) == {"PATH": "/bin", "CUDA_MPS_PIPE_DIRECTORY": "/ours"}
