"""The KAI scheduler: GPU memory as an annotation of a Pod."""

from __future__ import annotations

import re

from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import Names
from gkestimator.exporting.deployment import Deployment, Instance
from gkestimator.exporting.kubernetes import Pod, PodExporter
from gkestimator.exporting.rounding import cores_and_memory, memory_mib, refuse_above_one_gpu

QUEUE_PLACEHOLDER = "default-queue"
_QUEUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


class KaiExporter(PodExporter):
    """KAI shares a GPU by ``gpu-memory`` (MiB) or ``gpu-fraction``; memory is what it can count, so Mreq is
    what it is told."""

    name = "kai"
    summary = "KAI scheduler: annotation gpu-memory (MiB, from Mreq), label kai.scheduler/queue."
    limits = (
        "KAI enforces nothing: it counts gpu-memory (MiB) when it chooses a GPU, and neither memory nor "
        "compute is held to "
        "it. Creq is bookkeeping, and so is planned-gpus."
    )
    options = ("image", "queue")
    scheduler = "kai-scheduler"

    def __init__(self, *, image: str | None = None, queue: str | None = None) -> None:
        super().__init__(image=image)
        if queue is not None and not _QUEUE.fullmatch(queue):
            raise UsageError(
                f"{spelled('queue')} {queue[:80]!r}: expected the name of a KAI queue (at most 63 letters, "
                "digits, - _ .)"
            )
        self.queue = queue

    def pod(self, instance: Instance) -> Pod:
        """Its memory, in the queue."""
        refuse_above_one_gpu(instance, self.name)
        return Pod(
            annotations={"gpu-memory": str(memory_mib(instance, self.name))},
            labels={"kai.scheduler/queue": self.queue or QUEUE_PLACEHOLDER},
        )

    def check(self, deployment: Deployment) -> Names:
        """Refuse a plan that puts on one GPU what KAI would not let on it; return what rounding makes of the rest."""
        return cores_and_memory(deployment, self.name, cores=False)

    def messages(self, deployment: Deployment) -> Names:
        """Say that image and queue are still to be named."""
        messages = super().messages(deployment)
        if self.queue:
            return messages
        queue = f"the queue is {QUEUE_PLACEHOLDER}, KAI's own example: name yours by {spelled('queue')}"
        return (*messages, queue)
