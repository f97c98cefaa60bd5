"""Kubernetes Dynamic Resource Allocation: GPUs and parts of them by claims (resource.k8s.io/v1, from Kubernetes 1.34).

Kubernetes' part of a claim is checked against its own schema. Names of device classes, attributes, capacities and
parameters are the drivers' (NVIDIA's dra-driver-nvidia-gpu: its API resource.nvidia.com/v1beta1 and its examples;
HAMi's k8s-dra-driver: its README), which no package has a schema of and no cluster has tried here.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.exporting.deployment import Deployment, ExportFile, Instance
from gkestimator.exporting.kubernetes import CLAIM, Pod, PodExporter, product_labels, yaml_text
from gkestimator.exporting.mig import MigExporter
from gkestimator.exporting.mps import checked_for_mps, mps_environment
from gkestimator.exporting.names import dns_label, dns_labels
from gkestimator.exporting.rounding import (
    by_gpu,
    compute_pct,
    cores_and_memory,
    memory_mib,
    no_turns,
    percent_up,
)
from gkestimator.hardware.gpus import GpuSpec

NVIDIA = "gpu.nvidia.com"  # the driver, its device class for whole GPUs, and the domain of its attributes
NVIDIA_MIG = "mig.nvidia.com"
HAMI = "hami-core-gpu.project-hami.io"


@frozen
class Claim:
    """What is asked of one device. ``config`` are parameters for NVIDIA's driver. ``shared``: one ResourceClaim
    that several Pods name; else a ResourceClaimTemplate, from which every Pod gets a claim, and so a device or
    part of one, of its own."""

    name: str
    request: NamedValues
    config: NamedValues | None = None
    shared: bool = False

    @property
    def reference(self) -> Mapping[str, str]:
        """Return how a Pod names it."""
        if self.shared:
            return {"resourceClaimName": self.name}
        return {"resourceClaimTemplateName": self.name}

    @property
    def document(self) -> NamedValues:
        """Return it as an object of Kubernetes."""
        devices: NamedValues = {"requests": [{"name": CLAIM, "exactly": self.request}]}
        if self.config is not None:
            devices["config"] = [
                {"requests": [CLAIM], "opaque": {"driver": NVIDIA, "parameters": self.config}}
            ]
        spec: NamedValues = {"devices": devices}
        kind = "ResourceClaim"
        if not self.shared:
            spec = {"spec": spec}
            kind = "ResourceClaimTemplate"
        labels = {"app.kubernetes.io/managed-by": "gkestimator"}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": self.name, "labels": labels},
            "spec": spec,
        }


def nvidia_request(device_class: str, spec: GpuSpec, *conditions: str) -> NamedValues:
    """Return a request for a device of ``spec`` that meets ``conditions`` (CEL), from NVIDIA's driver.

    Its ``productName`` is the driver's name of the GPU, which the node label has with hyphens for spaces; a dot
    stands for either.
    """
    names = "|".join(product_labels(spec)).replace("-", ".")
    product = f"device.attributes['{NVIDIA}'].productName.matches('^({names})$')"
    return {
        "deviceClassName": device_class,
        "selectors": [{"cel": {"expression": text}} for text in (product, *conditions)],
    }


def claims_file(
    exporter: PodExporter, deployment: Deployment, claims: Iterable[Claim], *about: str
) -> ExportFile:
    """Return ``claims.yaml`` with each of ``claims`` once, by name."""
    documents = {(claim.name, claim.shared): claim.document for claim in claims}
    text = yaml_text(exporter, deployment, list(documents.values()), *about)
    return ExportFile(path=PurePosixPath("claims.yaml"), text=text)


class ClaimExporter(PodExporter):
    """A target whose Pods get their GPU by claims: ``claims.yaml`` and ``deployments.yaml``."""

    @abc.abstractmethod
    def claims(self, deployment: Deployment) -> Mapping[str, Claim]:
        """Return the claim of every instance, by its id. Raises UsageError."""

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return both files; ``kubectl apply -f FOLDER`` takes them together."""
        no_turns(deployment.instances, self.name)
        notes = self.check(deployment)
        claims = self.claims(deployment)
        pods = {
            i.id: dataclasses.replace(self.pod(i), claim=claims[i.id].reference) for i in deployment.instances
        }
        return (
            claims_file(self, deployment, claims.values(), *notes),
            self.deployments(deployment, pods, notes),
        )


class DraExporter(ClaimExporter):
    """A replica alone on its GPU, or on none yet, claims by a template. Replicas that a plan puts on one GPU name
    one claim between them: two claims never get one GPU from NVIDIA's driver."""

    name = "dra"
    summary = (
        "Kubernetes DRA, NVIDIA's driver: claims with MPS thread percentage (Creq) and memory limit (Mreq)."
    )
    limits = (
        "NVIDIA's DRA driver (its feature gate MPSSupport is to be on) runs an MPS daemon for each claim, which "
        "holds every Pod of the claim to the claim's percentage and memory: the largest Creq and Mreq of its "
        "replicas. A replica's own, where smaller, stands in its Pod's environment, which MPS obeys too. That the "
        "replicas of a claim share one GPU is enforced; which GPU that is, is not (planned-gpus). Percentages of "
        "one GPU may add up to more than 100: then its replicas compete."
    )

    def pod(self, instance: Instance) -> Pod:
        """Return its own percentage and memory, as MPS clients are told them."""
        return Pod(env=mps_environment(instance, self.name))

    def check(self, deployment: Deployment) -> Names:
        """Refuse what MPS cannot express; return what rounding makes of the rest."""
        return checked_for_mps(deployment, self.name)

    def affinity(self, spec: GpuSpec, pod: Pod, suffixes: Sequence[str]) -> NamedValues:
        """Return nothing: the claim says which GPU, and needs no labels of nodes."""
        return {}

    def claims(self, deployment: Deployment) -> Mapping[str, Claim]:
        """Return a ResourceClaim for each GPU of a plan that replicas share, and templates for all others."""
        types = dns_labels(deployment.specs)
        placed = {gpu: here for gpu, here in by_gpu(deployment.instances).items() if len(here) > 1}
        gpus = dns_labels(placed)
        claims: dict[str, Claim] = {}
        for gpu, here in placed.items():
            shared = self._claim(f"gpu-{gpus[gpu]}", deployment, here)
            claims |= dict.fromkeys((i.id for i in here), shared)
        for instance in deployment.instances:
            if instance.id not in claims:
                claims[instance.id] = self._claim(types[instance.gpu_type], deployment, (instance,))
        return claims

    def _claim(self, stem: str, deployment: Deployment, here: Sequence[Instance]) -> Claim:
        percent = max(percent_up(compute_pct(i, self.name)) for i in here)
        memory = max(memory_mib(i, self.name) for i in here)
        mps = {"defaultActiveThreadPercentage": percent, "defaultPinnedDeviceMemoryLimit": f"{memory}Mi"}
        shared = len(here) > 1
        return Claim(
            name=stem if shared else f"{stem}-{percent}pct-{memory}mi",
            request=nvidia_request(NVIDIA, deployment.specs[here[0].gpu_type]),
            config={
                "apiVersion": "resource.nvidia.com/v1beta1",
                "kind": "GpuConfig",
                "sharing": {"strategy": "MPS", "mpsConfig": mps},
            },
            shared=shared,
        )


class DraMigExporter(MigExporter):
    """Profiles and mig-parted files are those of target ``mig``; the Pods claim a profile by a template."""

    name = "dra-mig"
    summary = "Kubernetes DRA, NVIDIA's driver: claims for MIG profiles (class mig.nvidia.com), and mig-parted files."
    limits = (
        "MIG enforces both, at the size of the profile: sevenths of the compute and the profile's memory, each at "
        "least Creq and Mreq. Claims choose a device by its profile among those that the GPUs are cut into; "
        "planned-gpus is bookkeeping."
    )

    def pod(self, instance: Instance) -> Pod:
        """Return the name of its template."""
        return Pod(claim={"resourceClaimTemplateName": self._name(instance)})

    def _name(self, instance: Instance) -> str:
        return f"{dns_label(instance.gpu_type)}-{dns_label(f'mig-{self.profile(instance).name}')}"

    def affinity(self, spec: GpuSpec, pod: Pod, suffixes: Sequence[str]) -> NamedValues:
        """Return nothing: the claim says which GPU."""
        return {}

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return what target ``mig`` does, and ``claims.yaml``."""
        claims = []
        for instance in deployment.instances:
            profile = f"device.attributes['{NVIDIA}'].profile == '{self.profile(instance).name}'"
            request = nvidia_request(NVIDIA_MIG, deployment.specs[instance.gpu_type], profile)
            claims.append(Claim(name=self._name(instance), request=request))
        return (*super().files(deployment), claims_file(self, deployment, claims))


class DraCapacityExporter(ClaimExporter):
    """Kubernetes counts what claims take of a device's capacities (1.34, feature gate DRAConsumableCapacity), for
    drivers that let several claims have one device: HAMi's does, NVIDIA's does not that we know of."""

    name = "dra-capacity"
    summary = "Kubernetes DRA, HAMi's driver: claims for memory (Mreq) and cores (%, Creq) of a shared GPU."
    limits = (
        "Kubernetes takes memory and cores from what the GPU has left (its feature gate DRAConsumableCapacity is to "
        "be on), so that neither is given out twice. HAMi's driver enforces memory, and cores (%) while others run "
        "on the GPU. Which replicas share a GPU is Kubernetes' choice; planned-gpus is bookkeeping."
    )

    def pod(self, instance: Instance) -> Pod:
        """Return nothing: the claim says all."""
        return Pod()

    def check(self, deployment: Deployment) -> Names:
        """Refuse a plan that puts on one GPU what its capacity does not hold; return notes on the rest."""
        return cores_and_memory(deployment, self.name)

    def claims(self, deployment: Deployment) -> Mapping[str, Claim]:
        """Return a template for each kind of replica."""
        claims = {}
        for i in deployment.instances:
            cores, memory = percent_up(compute_pct(i, self.name)), memory_mib(i, self.name)
            capacity = {"requests": {"cores": str(cores), "memory": f"{memory}Mi"}}
            request = {"deviceClassName": HAMI, "capacity": capacity}
            claims[i.id] = Claim(name=f"hami-{cores}pct-{memory}mi", request=request)
        return claims
