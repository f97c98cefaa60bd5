"""What the Kubernetes targets share: replicas of one kind as one Deployment, GPU types as node labels, YAML
that every reader takes alike."""

from __future__ import annotations

import abc
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Any, ClassVar

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.options import spelled
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.exporting.deployment import Deployment, Exporter, ExportFile, Instance
from gkestimator.exporting.names import dns_labels
from gkestimator.exporting.rounding import no_turns
from gkestimator.exporting.variants import longest_wait_ms
from gkestimator.hardware.gpus import GpuSpec

IMAGE_PLACEHOLDER = "replace-with-your-image"
PRODUCT_LABEL = "nvidia.com/gpu.product"
CLAIM = "gpu"  # the name of a Pod's one claim, and of that claim's one request
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
# Plain in YAML 1.1 and 1.2 alike: PyYAML writes `1e3` bare, which kubectl reads as a number.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_SHOWN_GPUS = 50


@frozen
class ReplicaGroup:
    """Replicas of one model that ask for the same: one Kubernetes object. ``label`` is its name, unlike every
    other."""

    label: str
    instances: tuple[Instance, ...]

    @property
    def first(self) -> Instance:
        """Return one of them, which stands for all in what they ask for."""
        return self.instances[0]


@frozen
class Pod:
    """What a target adds to a Pod: ``limits`` of its container (whole numbers), annotations, labels, node
    labels, ``env`` of its container, and ``claim``, how it names the ResourceClaim of its GPU."""

    limits: Mapping[str, int] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    claim: Mapping[str, str] = field(default_factory=dict)


def groups_of(
    instances: Sequence[Instance], *, beside: Mapping[str, str] | None = None
) -> tuple[ReplicaGroup, ...]:
    """Return ``instances`` grouped by what they ask for, in order of the first of each group.

    ``beside`` tells instances (by id) apart that would else be alike. A model with several groups gets a
    number behind its name.
    """
    groups: dict[tuple[object, ...], list[Instance]] = {}
    for i in instances:
        alike = (
            i.model,
            i.gpu_type,
            i.runtime,
            i.dtype,
            i.dims,
            i.batch_size,
            i.sm_share_pct,
            i.creq_pct,
            i.mreq_bytes,
            (beside or {}).get(i.id),
        )
        groups.setdefault(alike, []).append(i)
    per_model: dict[str, int] = {}
    for key in groups:
        per_model[str(key[0])] = per_model.get(str(key[0]), 0) + 1
    seen: dict[str, int] = {}
    texts = []
    for key in groups:
        model = str(key[0])
        number = seen[model] = seen.get(model, -1) + 1
        # A space cannot stand in a model's name, so a group's text is never another model's.
        texts.append(model if per_model[model] == 1 else f"{model} {number}")
    labels = dns_labels(texts)
    return tuple(
        ReplicaGroup(label=labels[text], instances=tuple(group))
        for text, group in zip(texts, groups.values(), strict=True)
    )


def product_labels(spec: GpuSpec, *, suffix: str = "") -> list[str]:
    """Return values of the label ``nvidia.com/gpu.product`` (GPU feature discovery) that nodes with ``spec``
    may carry: the driver's name of the GPU with hyphens for spaces, with the maker's words that drivers have
    put before it."""
    values: dict[str, None] = {}
    for name in (spec.name, *spec.aliases):
        stem = re.sub(r"\s+", "-", name.strip())
        makers = ["NVIDIA-", ""]
        if stem.lower().startswith(("tesla-", "nvidia-")):
            makers = [""]
        elif stem.lower().startswith(("rtx-", "gtx-")):
            makers = ["NVIDIA-GeForce-", "NVIDIA-", "GeForce-"]
        elif spec.compute_capability < (8, 0) and not stem.lower().startswith("geforce-"):
            makers = ["Tesla-", "NVIDIA-", ""]  # data-centre GPUs were called Tesla until Turing
        for maker in makers:
            value = f"{maker}{stem}{suffix}"
            if _LABEL_VALUE.fullmatch(value):
                values[value] = None
    return list(values)


def node_affinity(
    spec: GpuSpec, node_labels: Mapping[str, str], *, suffixes: Sequence[str] = ("",)
) -> NamedValues:
    """Nodes whose GPU is ``spec`` and that carry ``node_labels``."""
    values = list(dict.fromkeys(v for s in suffixes for v in product_labels(spec, suffix=s)))
    terms = [{"key": PRODUCT_LABEL, "operator": "In", "values": values}]
    terms += [{"key": key, "operator": "In", "values": [value]} for key, value in node_labels.items()]
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def annotations_of(group: ReplicaGroup, deployment: Deployment, limits: str) -> dict[str, str]:
    """Return what the objects of every target say about a replica; nothing acts on it."""
    one = group.first
    share = one.sm_share_pct if one.sm_share_pct != 100 else None
    texts = {
        "gkestimator/model": one.model,
        "gkestimator/gpu-type": one.gpu_type,
        "gkestimator/runtime": one.runtime,
        "gkestimator/dtype": one.dtype,
        "gkestimator/dims": one.dims,
        "gkestimator/batch-size": str(one.batch_size),
        "gkestimator/creq": deployment.creq,
        "gkestimator/creq-pct": _figure(one.creq_pct),
        "gkestimator/mreq-bytes": _figure(one.mreq_bytes, "d"),
        "gkestimator/sm-share-pct": _figure(share),
        "gkestimator/slo-ms": _figure(one.slo_ms),
        "gkestimator/planned-gpus": shortened(i.gpu_id for i in group.instances if i.gpu_id is not None),
        "gkestimator/source": one_line(deployment.source),
        "gkestimator/limits": limits,
    }
    return {key: value for key, value in texts.items() if value}


def _figure(value: float | None, form: str = ".6g") -> str:
    """Return ``value`` in a form of :func:`format`; empty where it is not known."""
    if value is None:
        return ""
    return format(value, form)


def shortened(gpus: Iterable[str]) -> str:
    """Return the first of ``gpus`` by name, and how many more there are."""
    names = list(dict.fromkeys(gpus))
    if len(names) > _SHOWN_GPUS:
        more = f", and {len(names) - _SHOWN_GPUS} more"
    else:
        more = ""
    return ", ".join(names[:_SHOWN_GPUS]) + more


def replica_environment(instances: Sequence[Instance]) -> dict[str, str]:
    """Return what the process of each of ``instances``, which are alike, is told about itself; what is not
    known is left out."""
    one = instances[0]
    wait = longest_wait_ms(instances)
    most = ""
    if wait is not None:
        most = str(int(wait * 1000) / 1000)
    variables = {
        "GKEST_MODEL": one.model,
        "GKEST_BATCH_SIZE": str(one.batch_size),
        "GKEST_RUNTIME": one.runtime,
        "GKEST_DTYPE": one.dtype,
        "GKEST_DIMS": one.dims,
        "GKEST_MAX_WAIT_MS": most,
    }
    return {key: value for key, value in variables.items() if value}


def deployment_object(
    group: ReplicaGroup,
    deployment: Deployment,
    pod: Pod,
    *,
    image: str,
    limits: str,
    scheduler: str | None,
    affinity: Mapping[str, Any],
) -> NamedValues:
    """Return ``group`` as an apps/v1 Deployment with as many replicas as it has instances."""
    labels = {"app.kubernetes.io/name": group.label, "app.kubernetes.io/managed-by": "gkestimator"}
    about = annotations_of(group, deployment, limits)
    one = group.first
    env = {**pod.env, **replica_environment(group.instances)}
    spec: NamedValues = {}
    if scheduler is not None:
        spec["schedulerName"] = scheduler
    if affinity:
        spec["affinity"] = dict(affinity)
    if pod.claim:
        spec["resourceClaims"] = [{"name": CLAIM, **pod.claim}]
    container: NamedValues = {"name": "server", "image": image}
    container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    if pod.limits:
        container["resources"] = {"limits": dict(pod.limits)}
    if pod.claim:
        container["resources"] = {"claims": [{"name": CLAIM}]}
    spec["containers"] = [container]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": group.label, "labels": dict(labels), "annotations": about},
        "spec": {
            "replicas": len(group.instances),
            "selector": {"matchLabels": {"app.kubernetes.io/name": group.label}},
            "template": {
                "metadata": {
                    "labels": {**labels, **pod.labels},
                    "annotations": {"gkestimator/model": one.model, **pod.annotations},
                },
                "spec": spec,
            },
        },
    }


class PodExporter(Exporter):
    """A target that is reached by what Pods ask for: ``deployments.yaml``, for ``kubectl apply -f``."""

    options: ClassVar[Names] = ("image",)
    scheduler: ClassVar[str | None] = None

    def __init__(self, *, image: str | None = None) -> None:
        if image is not None and not _IMAGE.fullmatch(image):
            raise UsageError(f"{spelled('image')} {image[:60]!r}: expected the name of a container image")
        self.image = image or IMAGE_PLACEHOLDER

    @abc.abstractmethod
    def pod(self, instance: Instance) -> Pod:
        """Return what the Pod of ``instance`` asks for. Raises UsageError."""

    def check(self, deployment: Deployment) -> Names:
        """Refuse what this target cannot express, and say what it will do otherwise. Raises UsageError."""
        return ()

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``deployments.yaml``."""
        no_turns(deployment.instances, self.name)
        pods = {i.id: self.pod(i) for i in deployment.instances}
        return (self.deployments(deployment, pods, self.check(deployment)),)

    def deployments(
        self,
        deployment: Deployment,
        pods: Mapping[str, Pod],
        about: Sequence[str] = (),
        *,
        suffixes: Sequence[str] = ("",),
    ) -> ExportFile:
        """Return one Deployment for each kind of replica; ``pods`` by instance."""
        beside = {n: "|".join((*pod.node_labels.values(), *pod.claim.values())) for n, pod in pods.items()}
        objects = []
        for group in groups_of(deployment.instances, beside=beside):
            pod = pods[group.first.id]
            affinity = self.affinity(deployment.specs[group.first.gpu_type], pod, suffixes)
            objects.append(
                deployment_object(
                    group,
                    deployment,
                    pod,
                    image=self.image,
                    limits=self.limits,
                    scheduler=self.scheduler,
                    affinity=affinity,
                )
            )
        return ExportFile(
            path=PurePosixPath("deployments.yaml"), text=yaml_text(self, deployment, objects, *about)
        )

    def affinity(self, spec: GpuSpec, pod: Pod, suffixes: Sequence[str]) -> NamedValues:
        """Return which nodes a Pod may go to: those labelled with its GPU type; empty: any."""
        return node_affinity(spec, pod.node_labels, suffixes=suffixes)

    def messages(self, deployment: Deployment) -> Names:
        """Return what the target will do otherwise, and that the image is still to be named."""
        lines = list(self.check(deployment))
        if self.image == IMAGE_PLACEHOLDER:
            lines.append(
                f"the image is {IMAGE_PLACEHOLDER}: name yours by {spelled('image')}, or edit the file"
            )
        return tuple(lines)


def yaml_text(exporter: Exporter, deployment: Deployment, objects: Sequence[object], *about: str) -> str:
    """Return ``objects`` as YAML documents below a comment: the target's limits, what ``about`` says, the
    deployment's notes."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes every text that some YAML reader could take for something else."""

    def text(dumper: Any, value: str) -> Any:
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]
    body = yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, allow_unicode=False, width=110)
    return "".join(f"# {line}\n" for line in comment_lines(exporter, deployment, *about)) + body


def comment_lines(exporter: Exporter, deployment: Deployment, *about: str) -> list[str]:
    """Return what stands at the head of a file, wrapped: fixed words, and texts on one line each."""
    paragraphs = [
        f"Written by gkest export for {exporter.name}.",
        f"Limits: {exporter.limits}",
        f"Creq is {deployment.creq}, percent of the whole GPU; demands are rounded up.",
        *about,
        *(one_line(note) for note in deployment.notes[:20]),
    ]
    return [line for p in paragraphs for line in textwrap.wrap(p, 105, break_on_hyphens=False)]
