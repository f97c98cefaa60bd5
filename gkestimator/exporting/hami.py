"""HAMi: parts of a GPU by memory and cores, as limits of a container (chart 2.10)."""

from __future__ import annotations

from gkestimator.core.records import Names
from gkestimator.exporting.deployment import Deployment, Instance
from gkestimator.exporting.kubernetes import Pod, PodExporter
from gkestimator.exporting.rounding import compute_pct, cores_and_memory, memory_mib, percent_up


class HamiExporter(PodExporter):
    """Both gpumem and gpucores are always written: without gpucores HAMi 2.9.0 sets 100 (its issue 1863)."""

    name = "hami"
    summary = "HAMi: limits nvidia.com/gpu, gpumem (MiB, from Mreq) and gpucores (%, from Creq)."
    limits = (
        "HAMi enforces gpumem (MiB); it enforces gpucores (%) while others run on the GPU, not for a "
        "container that is "
        "alone there (its issue 737). It chooses the GPUs itself; planned-gpus is bookkeeping."
    )

    def pod(self, instance: Instance) -> Pod:
        """Return one virtual GPU with its memory and cores."""
        return Pod(
            limits={
                "nvidia.com/gpu": 1,
                "nvidia.com/gpumem": memory_mib(instance, self.name),
                "nvidia.com/gpucores": percent_up(compute_pct(instance, self.name)),
            }
        )

    def check(self, deployment: Deployment) -> Names:
        """Refuse a plan that puts on one GPU what HAMi would not let on it; return what rounding makes of the rest."""
        return cores_and_memory(deployment, self.name)
