"""A machine with a GPU that is not there, and a stand-in for NVIDIA's MPS daemon.

As a script, ``pretend_machine.py PLAN OUTPUT MPS-SCRIPT``: a run to be ended by a test.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gkestimator.profiling.colocating.jobs import PairMeans, PairOptions
from gkestimator.profiling.colocating.run import measure_pairs
from gkestimator.profiling.plan import read_plan
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample

HERE = Path(__file__).parent
UUID = "GPU-00000000-1111-2222-3333-444444444444"
# What NVIDIA's documentation says of nvidia-cuda-mps-control: -d starts it in the background, without arguments it reads
# commands from standard input.
_MPS = """#!/bin/sh
echo "$* pipe=$CUDA_MPS_PIPE_DIRECTORY log=$CUDA_MPS_LOG_DIRECTORY gpu=$CUDA_VISIBLE_DEVICES share=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" >> {log}
case "$1" in
-d)
    [ -e {refuse} ] && {{ echo "Cannot start: permission denied" >&2; exit 1; }}
    [ -e {once} ] && [ -e {once}d ] && touch {idle}
    touch {once}d
    stat -c %a "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY" >> {log}
    setsid sleep 600 </dev/null >/dev/null 2>&1 &
    echo $! > "$CUDA_MPS_PIPE_DIRECTORY/pid"
    echo daemon $! >> {log};;
"")
    read command
    echo "asked $command" >> {log}
    case "$command" in
    get_server_list) [ -e {idle} ] || echo 4711;;
    quit*) kill $(cat "$CUDA_MPS_PIPE_DIRECTORY/pid");;
    esac;;
esac
"""


def mps_script(folder: Path) -> Path:
    """The stand-in: ``calls`` beside it tells how it was called; ``refuse`` and ``idle``, where they exist, make it fail
    to start, or never have a server; ``once``: have none any more when it is started again."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(
        _MPS.format(
            log=folder / "calls", refuse=folder / "refuse", idle=folder / "idle", once=folder / "once"
        )
    )
    path.chmod(0o755)
    return path


def gpu(device: str = "cuda:0") -> DeviceFacts:
    return DeviceFacts(kind="gpu", name="NVIDIA H200", uuid=UUID, driver="570", limits={"sms": 132.0})


def means(mps: Path | None = None, **changed: Any) -> PairMeans:
    """Everything but the protocol and the loops is pretended; ``changed``: any field of Means."""
    made: dict[str, Any] = {
        "worker": (sys.executable, "-P", str(HERE / "pretend_worker.py")),
        "facts": gpu,
        "gpus": lambda: 1,
        "present": lambda _: True,
        "child_device": lambda device, facts: ("cpu", {"CUDA_VISIBLE_DEVICES": facts.uuid}),
        "sampling": lambda _: lambda: EnvironmentSample(unix_ns=0),
        "judge": lambda *_: "ok",
        "mps": lambda: mps,
        **changed,
    }
    return PairMeans(**made)


def alive(pid: int) -> bool:
    """Whether the process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if __name__ == "__main__":
    os.environ["PRETEND_LOG"] = sys.argv[2] + ".log"
    report = measure_pairs(
        read_plan(Path(sys.argv[1])),
        Path(sys.argv[2]),
        PairOptions(seconds=0.1, minutes=None),
        means=means(Path(sys.argv[3])),
    )
    print(report.summary())
    print(*report.words(), sep="\n")
    sys.exit(report.exit_code)
