"""MIG: GPUs cut into profiles by mig-parted, and Pods that ask for one."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from gkestimator.core.errors import UsageError
from gkestimator.exporting.deployment import Deployment, ExportFile, Instance
from gkestimator.exporting.kubernetes import Pod, PodExporter, shortened, yaml_text
from gkestimator.exporting.mig_profiles import MigProfile, fits_together, mig_profiles, smallest_profile
from gkestimator.exporting.names import dns_label
from gkestimator.exporting.rounding import by_gpu, compute_pct, memory_bytes, no_turns


class MigExporter(PodExporter):
    """Every replica gets the smallest profile that holds its Creq (sevenths of the compute) and Mreq. GPUs of
    a plan that are cut alike share a configuration; for a table there is one for each profile, with as many
    as fit."""

    name = "mig"
    summary = "MIG: a mig-parted file for each GPU type, and Pods that ask for nvidia.com/mig-<profile>."
    limits = (
        "MIG enforces both, at the size of the profile: sevenths of the compute and the profile's memory, "
        "each at least Creq and "
        "Mreq. Pods ask for a profile by name (the device plugin's mixed strategy); planned-gpus is bookkeeping."
    )

    def pod(self, instance: Instance) -> Pod:
        """Its profile."""
        return Pod(limits={self.profile(instance).resource: 1})

    def profile(self, instance: Instance) -> MigProfile:
        """Return the smallest that holds it. Raises UsageError where the GPU has none."""
        compute = compute_pct(instance, self.name)
        memory = memory_bytes(instance, self.name)
        smallest = smallest_profile(instance.gpu_type, compute, memory)
        if smallest is None:
            whole = mig_profiles(instance.gpu_type)[-1]
            raise UsageError(
                f"{instance.id}: found {compute:.4g} % of the compute and {memory:,} bytes, expected at "
                f"most what {whole.name}, "
                f"the largest MIG profile of {instance.gpu_type}, is sure to have: {whole.memory_bytes:,} bytes"
            )
        return smallest

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``mig-parted-<GPU type>.yaml`` for each type, and ``deployments.yaml``."""
        no_turns(deployment.instances, self.name)
        profiles = {i.id: self.profile(i) for i in deployment.instances}
        pods = {i.id: self.pod(i) for i in deployment.instances}
        files = [
            ExportFile(
                path=PurePosixPath(f"mig-parted-{dns_label(gpu)}.yaml"),
                text=self._parted(deployment, gpu, profiles),
            )
            for gpu in deployment.specs
        ]
        return (*files, self.deployments(deployment, pods))

    def _parted(self, deployment: Deployment, gpu_type: str, profiles: dict[str, MigProfile]) -> str:
        """Return the mig-parted file of one type: a configuration for each way in which its GPUs are cut."""
        here = [i for i in deployment.instances if i.gpu_type == gpu_type]
        stem = dns_label(gpu_type)
        configs: dict[str, dict[str, int]] = {}
        about: list[str] = []
        cuts: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for gpu, instances in by_gpu(here).items():
            asked = [profiles[i.id] for i in instances]
            if not fits_together(asked):
                names = ", ".join(p.name for p in asked)
                raise UsageError(
                    f"{gpu}: its replicas need {names}, expected MIG profiles that one {gpu_type} can be cut into"
                )
            cuts.setdefault(tuple(sorted(Counter(p.name for p in asked).items())), []).append(gpu)
        for number, (cut, gpus) in enumerate(cuts.items()):
            configs[f"{stem}-{number}"] = dict(cut)
            about.append(f"{stem}-{number}: {shortened(gpus)}")
        for profile in dict.fromkeys(profiles[i.id] for i in here if i.gpu_id is None):
            many = max(n for n in range(1, 8) if fits_together([profile] * n))
            configs[f"{stem}-all-{profile.name}"] = {profile.name: many}
        document = {
            "version": "v1",
            "mig-configs": {
                name: [{"devices": "all", "mig-enabled": True, "mig-devices": cut}]
                for name, cut in configs.items()
            },
        }
        return yaml_text(
            self,
            deployment,
            [document],
            f"For nodes with {gpu_type}: nvidia-mig-parted apply -f FILE -c NAME, or the label "
            "nvidia.com/mig.config=NAME. "
            "A configuration holds for all GPUs of a node.",
            *about,
        )
