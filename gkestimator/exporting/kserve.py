"""KServe: one InferenceService (v1beta1) for each kind of replica."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import quote

from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import NamedValues, Names
from gkestimator.exporting.deployment import Deployment, Exporter, ExportFile, Instance
from gkestimator.exporting.kubernetes import annotations_of, groups_of, node_affinity, yaml_text
from gkestimator.exporting.rounding import refuse_above_one_gpu
from gkestimator.exporting.variants import longest_wait_ms
from gkestimator.hardware.runtimes import served_as

STORAGE_PLACEHOLDER = "pvc://replace-with-your-claim"
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._~:/@%+-]{1,500}")


class KServeExporter(Exporter):
    """``storageUri`` is ``storage_uri`` with the model's name behind it."""

    name = "kserve"
    summary = "KServe InferenceService: replicas and batch size; a whole GPU each."
    batching = "early"
    limits = (
        "KServe gives every replica whole GPUs: neither Creq nor Mreq is a limit, and replicas that the plan "
        "puts on one GPU take one each. It holds the number of replicas and the batch size (its batcher "
        "waits at most maxLatency, ms)."
    )
    options = ("storage_uri",)

    def __init__(self, *, storage_uri: str | None = None) -> None:
        if storage_uri is not None and not _URI.fullmatch(storage_uri):
            raise UsageError(
                f"{spelled('storage_uri')} {storage_uri[:80]!r}: expected a URI such as s3://bucket/models or pvc://claim/models"
            )
        self.storage_uri = storage_uri

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``inferenceservices.yaml``. Replicas that take turns on one GPU need no turns here: each has
        a GPU of its own."""
        objects = []
        for group in groups_of(deployment.instances):
            one = group.first
            refuse_above_one_gpu(one, self.name)
            batcher = {"maxBatchSize": one.batch_size}
            wait = longest_wait_ms(group.instances)
            if wait is not None:
                batcher["maxLatency"] = max(1, int(wait))  # whole ms; a wait is rounded down
            objects.append(
                {
                    "apiVersion": "serving.kserve.io/v1beta1",
                    "kind": "InferenceService",
                    "metadata": {
                        "name": group.label,
                        "annotations": annotations_of(group, deployment, self.limits),
                    },
                    "spec": {
                        "predictor": {
                            "minReplicas": len(group.instances),
                            "maxReplicas": len(group.instances),
                            "affinity": node_affinity(deployment.specs[one.gpu_type], {}),
                            "batcher": batcher,
                            "model": {
                                **self.model_of(one),
                                "resources": {
                                    "limits": {"nvidia.com/gpu": 1},
                                    "requests": {"nvidia.com/gpu": 1},
                                },
                            },
                        }
                    },
                }
            )
        text = yaml_text(self, deployment, objects)
        return (ExportFile(path=PurePosixPath("inferenceservices.yaml"), text=text),)

    def model_of(self, one: Instance) -> NamedValues:
        """Return the format of a replica's model and where it lies: engines below the GPU type that they are for."""
        root = (self.storage_uri or STORAGE_PLACEHOLDER).rstrip("/")
        form = served_as(one.runtime).server
        uri = f"{root}/{quote(one.model)}"
        if form.engine_file:
            uri = f"{uri}/{quote(one.gpu_type)}"
        return {"modelFormat": {"name": form.model_format}, "storageUri": uri}

    def model_messages(self, deployment: Deployment) -> Names:
        """Return what is still to be named, and what must be built or set besides."""
        lines = []
        if self.storage_uri is None:
            lines.append(
                f"models are taken from {STORAGE_PLACEHOLDER}: name the place by {spelled('storage_uri')}"
            )
        for name in sorted({i.runtime for i in deployment.instances}):
            served = served_as(name)
            if served.build:
                lines.append(f"{name}: {served.build}")
            if served.server.accelerator:
                lines.append(
                    f"{name}: an InferenceService names no accelerator; the server runs the files with its own default"
                )
        return tuple(lines)

    def messages(self, deployment: Deployment) -> Names:
        """Return what is still to be named, and how many GPUs this takes."""
        lines = [*self.model_messages(deployment)]
        planned = {i.gpu_id for i in deployment.instances if i.gpu_id is not None}
        if planned and len(planned) < len(deployment.instances):
            lines.append(
                f"its {len(deployment.instances)} replicas take a whole GPU each; the plan has them on "
                f"{len(planned)}"
            )
        return tuple(lines)
