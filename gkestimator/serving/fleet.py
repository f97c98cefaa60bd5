"""Start and end the worker processes of a service, as Ray actors that live no longer than their router."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gkestimator.core.errors import UsageError
from gkestimator.core.records import NamedValues
from gkestimator.serving.links import LinkOwner, WorkerLink
from gkestimator.serving.messages import FleetSettings
from gkestimator.serving.served import ServedReplica
from gkestimator.serving.workers import ServingWorker

# Of the GPU that a placement group holds for its workers: Ray must not refuse one more.
_GPU_PART = 0.01
_GROUP_S = 60.0
_MIB = 2**20


class Fleet:
    """Hold the workers by what they stand for: a GPU that is emulated, or a partition of a real one."""

    def __init__(self, settings: FleetSettings, owner: LinkOwner) -> None:
        self.links: dict[str, WorkerLink] = {}
        self._settings = settings
        self._owner = owner
        self._groups: dict[str, Any] = {}
        self._spares: list[Any] = []

    def key(self, replica: ServedReplica) -> str:
        """Return the worker that ``replica`` belongs to."""
        if self._settings.workers.law is not None:
            return replica.gpu
        # A process keeps its share of the SMs for life.
        return f"{replica.gpu}/{replica.lane}/{replica.asked.sm_share_pct:g}"

    def link(self, replica: ServedReplica) -> WorkerLink:
        """Return the line to the worker of ``replica``, which need not be started."""
        key = self.key(replica)
        if key not in self.links:
            self.links[key] = WorkerLink(
                key, lambda: self._start(replica), self._owner, drop=self._settings.workers.drop
            )
        return self.links[key]

    def loaded(self) -> list[ServedReplica]:
        """Return every replica that is loaded."""
        return [replica for link in self.links.values() for replica in link.replicas.values()]

    async def load(self, replicas: Sequence[ServedReplica], wait_ms: float) -> dict[str, NamedValues | None]:
        """Load ``replicas``, those of one worker one after the other; return signatures by model (None: emulated).

        Raises UsageError naming the replica that cannot be loaded; those that could be stay loaded.
        """
        by_worker: dict[str, list[ServedReplica]] = {}
        for replica in replicas:
            await self._hold_gpu(replica)
            by_worker.setdefault(self.key(replica), []).append(replica)
        parts = await asyncio.gather(
            *(self._load_on_one(own, wait_ms) for own in by_worker.values()), return_exceptions=True
        )
        signatures: dict[str, NamedValues | None] = {}
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            signatures |= part
        return signatures

    async def _load_on_one(
        self, replicas: Iterable[ServedReplica], wait_ms: float
    ) -> dict[str, NamedValues | None]:
        signatures = {}
        for replica in replicas:
            link = self.link(replica)
            try:
                signatures[replica.model] = await link.load(replica, wait_ms)
            except Exception as e:
                if not link.replicas:
                    self._forget(link)
                cause = getattr(e, "cause", None) or e
                line = (str(cause).strip() or type(cause).__name__).splitlines()[-1]
                raise UsageError(f"{replica.name} on {replica.gpu} cannot be loaded: {line}") from e
        return signatures

    async def end(self, replica: ServedReplica) -> None:
        """Unload ``replica``, and its worker with the last of its replicas."""
        link = self.links.get(self.key(replica))
        if link is not None:
            await link.end(replica.name)
            if not link.replicas:
                self._forget(link)
        used = {own.gpu for own in self.loaded()}
        if replica.gpu in self._groups and replica.gpu not in used:
            remove_placement_group(self._groups.pop(replica.gpu))

    def close(self) -> None:
        """End every worker at once."""
        for link in self.links.values():
            link.close()
        self.links.clear()
        for spare in self._spares:
            ray.kill(spare)
        self._spares.clear()

    def fill_spares(self) -> None:
        """Start as many spare workers as are missing: a process takes seconds to start, a load by itself need not."""
        while len(self._spares) < self._settings.spares and not self._settings.gpus:
            self._spares.append(self._started(self._options()))

    def _forget(self, link: WorkerLink) -> None:
        link.close()
        self.links.pop(link.key, None)

    async def _hold_gpu(self, replica: ServedReplica) -> None:
        """Hold one GPU of the cluster for all workers of the plan's, which Ray would else deal out as it likes."""
        if not self._settings.gpus or replica.gpu in self._groups:
            return
        from gkestimator.exporting.ray_serve import ACCELERATORS

        there: NamedValues = ray.cluster_resources()  # type: ignore[no-untyped-call]
        bundle = {"GPU": 1.0}
        name = next(
            (r for ours, r in ACCELERATORS.items() if f"{replica.gpu_type}-".startswith(f"{ours}-")), None
        )
        resource = f"accelerator_type:{name}"
        if name is not None and resource in there:
            bundle[resource] = 0.001
        group = placement_group([bundle])
        try:
            await asyncio.wait_for(group.ready(), _GROUP_S)
        except TimeoutError as e:
            raise UsageError(f"no free GPU for {replica.gpu} ({replica.gpu_type}) in the Ray cluster") from e
        self._groups[replica.gpu] = group

    def _start(self, replica: ServedReplica) -> Any:
        """Return a worker for ``replica``: a spare one, where there is one."""
        if self._spares:
            return self._spares.pop()
        options = self._options()
        if self._settings.gpus:
            options["num_gpus"] = _GPU_PART
            group = self._groups[replica.gpu]
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(placement_group=group)
            environment = _mps_environment(replica)
            if environment:
                options["runtime_env"] = {"env_vars": environment}
        return self._started(options)

    def _options(self) -> dict[str, Any]:
        return {"num_cpus": 0, "max_concurrency": 10_000, "max_task_retries": 0}

    def _started(self, options: NamedValues) -> Any:
        return ray.remote(ServingWorker).options(**options).remote(self._settings.workers)


def _mps_environment(replica: ServedReplica) -> dict[str, str]:
    """Return the variables by which NVIDIA MPS confines the process of ``replica`` to its share of the SMs."""
    share = replica.asked.sm_share_pct
    if share >= 100:
        return {}
    environment = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(math.ceil(share))}
    if replica.asked.mreq_bytes is not None and replica.asked.partition is None:
        limit = math.ceil(replica.asked.mreq_bytes / _MIB)
        environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={limit}M"
    return environment
