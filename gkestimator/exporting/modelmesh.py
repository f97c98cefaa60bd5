"""ModelMesh: one InferenceService (v1beta1) for each model, with its size in bytes.

ModelMesh packs models by a size. Its runtime adapters take the size of the model's files times MODELSIZE_MULTIPLIER
(1.25 unless the ServingRuntime sets it in builtInAdapter.env), and DEFAULT_MODELSIZE where they see no files
(modelmesh-runtime-adapter, CalcMemCapacity). No annotation for a size in bytes is known to us to have been released
(asked for in modelmesh-serving issues 392 and 407), so ours is under our own name, and nothing reads it.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

from gkestimator.core.records import Names
from gkestimator.estimation.inspection import inspect_model
from gkestimator.exporting.deployment import Deployment, ExportFile, Instance
from gkestimator.exporting.kserve import KServeExporter
from gkestimator.exporting.kubernetes import ReplicaGroup, annotations_of, yaml_text
from gkestimator.exporting.names import dns_labels
from gkestimator.exporting.rounding import memory_bytes, no_turns
from gkestimator.hardware.runtimes import served_as


class ModelMeshExporter(KServeExporter):
    """A model stands once, with the most that any of its replicas needs: ModelMesh makes its copies itself."""

    name = "modelmesh"
    summary = "ModelMesh: an InferenceService for each model, with its size in bytes (Mreq)."
    limits = (
        "ModelMesh enforces nothing: it packs models into the memory that its servers' containers ask for, by a size "
        "that it takes from their files times MODELSIZE_MULTIPLIER. gkestimator/mreq-bytes is bookkeeping; it holds "
        "the CUDA context, which a server with several models has once. Replicas, batch size and Creq are "
        "bookkeeping too."
    )

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``inferenceservices.yaml``."""
        no_turns(deployment.instances, self.name)
        largest: dict[str, Instance] = {}
        for i in deployment.instances:
            size = memory_bytes(i, self.name)
            if i.model not in largest or size > memory_bytes(largest[i.model], self.name):
                largest[i.model] = i
        labels = dns_labels(largest)
        objects = []
        for model, one in largest.items():
            group = ReplicaGroup(label=labels[model], instances=(one,))
            annotations = annotations_of(group, deployment, self.limits)
            objects.append(
                {
                    "apiVersion": "serving.kserve.io/v1beta1",
                    "kind": "InferenceService",
                    "metadata": {
                        "name": group.label,
                        "annotations": {"serving.kserve.io/deploymentMode": "ModelMesh", **annotations},
                    },
                    "spec": {"predictor": {"model": self.model_of(one)}},
                }
            )
        text = yaml_text(self, deployment, objects, self._settings(largest, deployment))
        return (ExportFile(path=PurePosixPath("inferenceservices.yaml"), text=text),)

    def _settings(self, largest: dict[str, Instance], deployment: Deployment) -> str:
        """Return what a ServingRuntime must set for ModelMesh to count at least our bytes for every model.

        The parameters stand for the files: they are the same wherever the weights lie, or where they are absent.
        """
        sizes = {model: memory_bytes(one, self.name) for model, one in largest.items()}
        text = f"For builtInAdapter.env of their ServingRuntime: DEFAULT_MODELSIZE={max(sizes.values())}"
        if not sizes.keys() <= deployment.models.keys():
            return f"{text}; MODELSIZE_MULTIPLIER too, where option models names the files"
        parameters = {model: inspect_model(Path(deployment.models[model])).parameter_bytes for model in sizes}
        # At least one byte: a model without parameters has a file all the same.
        factor = max(size / max(1, parameters[model]) for model, size in sizes.items())
        return f"{text}, MODELSIZE_MULTIPLIER={math.ceil(factor * 100) / 100:.2f}"

    def messages(self, deployment: Deployment) -> Names:
        """Say what is still to be named or built."""
        lines = [*self.model_messages(deployment)]
        types: dict[str, set[str]] = {}
        for i in deployment.instances:
            if served_as(i.runtime).server.engine_file:
                types.setdefault(i.model, set()).add(i.gpu_type)
        for model, gpus in types.items():
            if len(gpus) > 1:
                lines.append(
                    f"{model}: an engine runs on one type of GPU, found {', '.join(sorted(gpus))}; ModelMesh puts one "
                    "file on any of its servers: export a plan of each type"
                )
        return tuple(lines)
