"""The NVIDIA device plugin with MPS sharing: every GPU of a node cut into equal shares."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

from gkestimator.core.errors import UsageError
from gkestimator.exporting.deployment import Deployment, ExportFile, Instance
from gkestimator.exporting.kubernetes import Pod, PodExporter, shortened, yaml_text
from gkestimator.exporting.mps import clients_at_most, needs_volta
from gkestimator.exporting.names import dns_label
from gkestimator.exporting.rounding import by_gpu, compute_pct, count_down, memory_pct, no_turns

CONFIG_LABEL = "nvidia.com/device-plugin.config"
_AS_MANY_AS_YOU_LIKE = 10**6


def shares_of(instance: Instance, target: str = "device-plugin") -> int:
    """Into how many equal shares a GPU may be cut so that one holds ``instance``: floor(min(1 / Creq, memory
    / Mreq))."""
    compute = compute_pct(instance, target)
    memory = memory_pct(instance, target)
    largest = max(compute, memory)
    if largest == 0:
        return _AS_MANY_AS_YOU_LIKE
    return count_down(100 / largest)


class DevicePluginExporter(PodExporter):
    """A configuration of the plugin holds for every GPU of a node. Replicas whose GPU may be cut into equally
    many shares therefore go to nodes of one configuration, which Pods choose by the plugin's own node
    label."""

    name = "device-plugin"
    summary = (
        "NVIDIA device plugin, MPS sharing: equal shares of a GPU, as many as the largest demand allows."
    )
    limits = (
        "The device plugin enforces both by MPS, at 1/replicas of the GPU for every container: each gets "
        "at least its Creq and Mreq. "
        "A configuration without sharing gives whole GPUs. Not to be mixed with MIG or time-slicing; "
        "planned-gpus is bookkeeping."
    )

    def pod(self, instance: Instance) -> Pod:
        """Return one share."""
        return Pod(limits={"nvidia.com/gpu": 1})

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``config-<name>.yaml`` for each number of shares of a GPU type, and ``deployments.yaml``."""
        no_turns(deployment.instances, self.name)
        for spec in deployment.specs.values():
            needs_volta(spec, self.name)
        names: dict[str, str] = {}
        configs: dict[str, tuple[int, list[str]]] = {}
        for gpu, here, shares in self._cut(deployment):
            stem = dns_label(here[0].gpu_type)
            if shares == 1:
                name = f"{stem}-whole"
            else:
                name = f"{stem}-mps-{shares}"
            configs.setdefault(name, (shares, []))[1].append(gpu)
            names |= {i.id: name for i in here}
        pods = {
            i.id: Pod(limits=self.pod(i).limits, node_labels={CONFIG_LABEL: names[i.id]})
            for i in deployment.instances
        }
        files = [
            ExportFile(
                path=PurePosixPath(f"config-{name}.yaml"), text=self._config(deployment, name, *config)
            )
            for name, config in configs.items()
        ]
        # GPU feature discovery appends -SHARED to the product of a GPU that is cut into shares.
        return (*files, self.deployments(deployment, pods, suffixes=("", "-SHARED")))

    def _cut(self, deployment: Deployment) -> list[tuple[str, tuple[Instance, ...], int]]:
        """(GPU or type, its instances, into how many shares it is cut)."""
        placed = by_gpu(deployment.instances)
        lots = []
        for gpu, here in placed.items():
            shares = self._shares(deployment, here)
            if len(here) > shares:
                largest = min(here, key=shares_of)
                raise UsageError(
                    f"{gpu}: holds {len(here)} replicas, and {largest.id} needs a share of 1/{shares}: "
                    f"{self.name} cuts a GPU into equal "
                    "shares; expected replicas of about the same size on it"
                )
            lots.append((gpu, here, shares))
        by_type: dict[str, list[Instance]] = defaultdict(list)
        for instance in deployment.instances:
            if instance.gpu_id is None:
                by_type[instance.gpu_type].append(instance)
        lots += [(t, tuple(here), self._shares(deployment, tuple(here))) for t, here in by_type.items()]
        return lots

    def _shares(self, deployment: Deployment, here: tuple[Instance, ...]) -> int:
        return min(clients_at_most(deployment.specs[here[0].gpu_type]), *(shares_of(i) for i in here))

    def _config(self, deployment: Deployment, name: str, shares: int, gpus: list[str]) -> str:
        document: dict[str, object] = {"version": "v1"}
        if shares > 1:
            document["sharing"] = {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": shares}]}}
        return yaml_text(
            self,
            deployment,
            [document],
            f"For nodes labelled {CONFIG_LABEL}={name}; replicas = floor(min(1 / Creq, memory / Mreq)) of "
            f"what is on: {shortened(gpus)}",
        )
