"""Volcano's vGPU: parts of a GPU by memory and cores, as limits of a container."""

from __future__ import annotations

from gkestimator.core.records import Names
from gkestimator.exporting.deployment import Deployment, Instance
from gkestimator.exporting.kubernetes import Pod, PodExporter
from gkestimator.exporting.rounding import compute_pct, cores_and_memory, memory_mib, percent_up


class VolcanoExporter(PodExporter):
    """Volcano's megabytes are MiB: its device plugin divides the driver's bytes by 2^20."""

    name = "volcano"
    summary = "Volcano vGPU: limits volcano.sh/vgpu-number, vgpu-memory (MiB, from Mreq), vgpu-cores (%, from Creq)."
    limits = (
        "Volcano enforces vgpu-memory (MB of 2^20 bytes); it packs by vgpu-cores (%), but does not hold a "
        "container to "
        "them. It chooses the GPUs itself; planned-gpus is bookkeeping."
    )
    scheduler = "volcano"

    def pod(self, instance: Instance) -> Pod:
        """Return one virtual GPU with its memory and cores."""
        return Pod(
            limits={
                "volcano.sh/vgpu-number": 1,
                "volcano.sh/vgpu-memory": memory_mib(instance, self.name),
                "volcano.sh/vgpu-cores": percent_up(compute_pct(instance, self.name)),
            }
        )

    def check(self, deployment: Deployment) -> Names:
        """Refuse a plan that puts on one GPU what Volcano would not let on it; return notes on the rest."""
        return cores_and_memory(deployment, self.name)
