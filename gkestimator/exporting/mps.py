"""NVIDIA MPS: the environment of each replica's process, as one file each."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from gkestimator.core.errors import UsageError
from gkestimator.core.records import Names
from gkestimator.exporting.deployment import Deployment, Exporter, ExportFile, Instance
from gkestimator.exporting.kubernetes import comment_lines, replica_environment
from gkestimator.exporting.names import dns_labels
from gkestimator.exporting.rounding import (
    compute_pct,
    cores_and_memory,
    memory_mib,
    no_turns,
    percent_up,
    within_gpu,
)
from gkestimator.hardware.gpus import GpuSpec

_README = """\
Each .env file is the environment of one replica's process: lines of NAME=value that a shell (set -a; . FILE) and
systemd (EnvironmentFile=) read alike. A plan's files stand in a folder for each of its GPUs.

1. Start the daemon once on each GPU's machine, as the user who runs the replicas:

     export CUDA_VISIBLE_DEVICES=0        # the GPU that stands for the folder; the limits below call it 0
     nvidia-cuda-mps-control -d

2. Start each replica with its file and the same CUDA_MPS_PIPE_DIRECTORY as the daemon's, where you set one.
3. To stop the daemon: echo quit | nvidia-cuda-mps-control
"""


def needs_volta(spec: GpuSpec, target: str) -> None:
    """Refuse a GPU on which MPS holds nobody to a share. Raises UsageError."""
    if spec.compute_capability < (7, 0):
        major, minor = spec.compute_capability
        raise UsageError(
            f"{spec.name}: found compute capability {major}.{minor}, expected 7.0 (Volta) or later: MPS "
            "limits are not enforced "
            f"before, so {target} cannot hold them"
        )


def clients_at_most(spec: GpuSpec, target: str = "MPS") -> int:
    """Processes that MPS lets share one GPU from Volta on (NVIDIA, Multi-Process Service, section 2.3.2):
    48."""
    needs_volta(spec, target)
    return 48


def checked_for_mps(deployment: Deployment, target: str) -> Names:
    """Return what rounding makes of a plan whose replicas share GPUs by MPS. Raises UsageError where they take
    turns, ask for more memory than a GPU has or are more than MPS serves, or a GPU is too old."""
    no_turns(deployment.instances, target)
    clients = {name: float(clients_at_most(spec, target)) for name, spec in deployment.specs.items()}
    notes = cores_and_memory(deployment, target, cores=False)
    within_gpu([(i, 1.0) for i in deployment.instances], clients, "MPS clients", target)
    return notes


def mps_environment(instance: Instance, target: str) -> dict[str, str]:
    """Return the variables by which MPS confines one process, on the first GPU that it sees."""
    return {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent_up(compute_pct(instance, target))),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory_mib(instance, target)}M",
    }


class MpsExporter(Exporter):
    """A replica confined to a share of the SMs gets that share; any other its Creq."""

    name = "mps"
    summary = "NVIDIA MPS: an environment file per replica, thread percentage (Creq) and memory limit (Mreq)."
    limits = (
        "MPS enforces both, on Volta and later: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE (Creq, % of the SMs) and "
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT (Mreq, M of 2^20 bytes, for the first visible GPU). Percentages "
        "of one GPU may add up to "
        "more than 100: then its replicas compete."
    )

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``<GPU>/<replica>.env`` for a plan, ``<model>.env`` for a table, and ``README.txt``."""
        notes = checked_for_mps(deployment, self.name)
        folders = dns_labels(i.gpu_id for i in deployment.instances if i.gpu_id is not None)
        files = dns_labels(i.id for i in deployment.instances)
        head = [f"# {line}" for line in comment_lines(self, deployment, *notes)]
        written = []
        for i in deployment.instances:
            name = f"{files[i.id]}.env"
            if i.gpu_id is None:
                path = PurePosixPath(name)
            else:
                path = PurePosixPath(folders[i.gpu_id], name)
            lines = [f"{key}={shlex.quote(value)}" for key, value in self.environment(i).items()]
            written.append(ExportFile(path=path, text="\n".join([*head, *lines]) + "\n"))
        readme = "\n".join(comment_lines(self, deployment, *notes)) + "\n\n" + _README
        return (*written, ExportFile(path=PurePosixPath("README.txt"), text=readme))

    def environment(self, instance: Instance) -> dict[str, str]:
        """Return the variables of one replica, as they are before any quoting."""
        return {
            **mps_environment(instance, self.name),
            "GKEST_REPLICA": instance.id,
            **replica_environment([instance]),
        }
