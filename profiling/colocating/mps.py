"""NVIDIA's Multi-Process Service, our own: a control daemon with private folders, ended on the way out.

After NVIDIA's "Multi-Process Service" (docs.nvidia.com/deploy/mps): ``nvidia-cuda-mps-control -d`` starts the
daemon; a CUDA program finds it by ``CUDA_MPS_PIPE_DIRECTORY`` when CUDA is initialised, which starts the
server, and runs without MPS where no daemon listens there; without arguments the binary reads commands
(``get_server_list``, ``quit -t SECONDS``) from its standard input. ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``
confines a client to a part of the SMs. The GPU's compute mode is never changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.jobs.children import end_guarded, log_end, start_guarded
from gkestimator.profiling.type_names import Ints, TextByName, Texts

BINARY = "nvidia-cuda-mps-control"
_USUAL = (
    "/usr/bin",
    "/usr/local/nvidia/bin",
    "/usr/local/cuda*/bin",
    "/opt/nvidia/bin",
    "/usr/lib/nvidia/bin",
)
_SERVER = re.compile(r"^\s*(\d{1,10})\b", re.MULTILINE)
_OURS = "CUDA_MPS_"
_START_S = 40.0
_ASK_S = 10.0
_QUIT_S = 5
_POLL_S = 0.05
_MOST_LOG = 4096


class MpsError(GkestimatorError):
    """Say why the daemon cannot be had."""


def find_mps() -> Path | None:
    """Return the daemon's executable: on PATH, or where drivers and container runtimes put it."""
    on_path = shutil.which(BINARY)
    if on_path:
        return Path(on_path)
    for pattern in _USUAL:
        for path in sorted(Path("/").glob(f"{pattern[1:]}/{BINARY}"), reverse=True):
            if path.is_file() and os.access(path, os.X_OK):
                return path
    return None


def client_environment(base: TextByName, pipes: Path, share_pct: float | None = None) -> Texts:
    """Return ``base`` for a program that finds the daemon of ``pipes``, or none where none listens there: not
    one that runs on this machine already, nor limits that were meant for others. ``share_pct``: of the SMs;
    None: all."""
    environment = {k: v for k, v in base.items() if not k.startswith(_OURS)}
    environment["CUDA_MPS_PIPE_DIRECTORY"] = str(pipes)
    if share_pct is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{share_pct:g}"
    return environment


class MpsDaemon:
    """Run a control daemon for one GPU, with its pipes and logs in ``folder`` (ours, mode 700). Raises
    MpsError where it does not start. It ends with :meth:`stop`, and with this process, however that ends.
    ``gpu_uuid``: the only GPU that it serves; None: all."""

    def __init__(self, binary: Path, folder: Path, *, gpu_uuid: str | None, tick: Callable[[], None]) -> None:
        self.binary = binary
        self.pipes = folder / "pipe"
        self._logs = folder / "log"
        for made in (self.pipes, self._logs):
            made.mkdir(mode=0o700)
        self._environment = client_environment(os.environ, self.pipes) | {
            "CUDA_MPS_LOG_DIRECTORY": str(self._logs)
        }
        # The server numbers the GPUs that the daemon sees, and clients count among those: by its UUID a GPU is the same
        # to both, by a number it is not.
        self._environment.pop("CUDA_VISIBLE_DEVICES", None)
        if gpu_uuid is not None:
            self._environment["CUDA_VISIBLE_DEVICES"] = gpu_uuid
        answer = folder / "started.json"
        keeper = Path(__file__).with_name("mps_keeper.py")
        command = [sys.executable, "-I", "-S", str(keeper), str(binary), str(answer)]
        try:
            self._guard = start_guarded(command, subprocess.DEVNULL, self._environment)
        except OSError as e:
            raise MpsError(f"{BINARY}: cannot be started: {e.strerror or e}") from e
        try:
            self._wait(answer, tick)
        except BaseException:
            end_guarded(self._guard)
            raise

    def _wait(self, answer: Path, tick: Callable[[], None]) -> None:
        end = time.monotonic() + _START_S
        while not answer.exists():
            tick()
            if self._guard.poll() is not None or time.monotonic() > end:
                raise MpsError(f"{self.binary} -d: gave no sign of life within {_START_S:.0f} s")
            time.sleep(_POLL_S)
        started = json.loads(answer.read_text(encoding="utf-8"))
        if started["status"] != 0:
            status = "" if started["status"] is None else f"status {started['status']}: "
            words = one_line(started["output"], limit=200) or self.complaint() or "no word"
            raise MpsError(f"{self.binary} -d: {status}{words}")

    def servers(self) -> Ints:
        """Return the process ids of the servers that run: none until a client has initialised CUDA."""
        _, answer = self._ask("get_server_list")
        return tuple(int(n) for n in _SERVER.findall(answer))

    def stop(self) -> None:
        """Quit; what does not end by itself is killed."""
        if self._guard.poll() is None:
            status, _ = self._ask(f"quit -t {_QUIT_S}", within_s=_QUIT_S + _ASK_S)
            if status != 0:  # one that knows no time limit
                self._ask("quit")
        end_guarded(self._guard)

    def complaint(self) -> str | None:
        """Return the last line of the logs that speaks of an error; None without one."""
        for name in ("control.log", "server.log"):
            for line in reversed(log_end(self._logs / name, _MOST_LOG).splitlines()):
                if re.search(r"error|fail", line, re.IGNORECASE):
                    return one_line(line, limit=200)
        return None

    def _ask(self, command: str, *, within_s: float = _ASK_S) -> tuple[int | None, str]:
        """Return exit status and words of the daemon's front end; no status and no words where it does not
        answer."""
        try:
            done = subprocess.run(
                [str(self.binary)],
                input=command + "\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                env=self._environment,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None, ""
        return done.returncode, done.stdout
