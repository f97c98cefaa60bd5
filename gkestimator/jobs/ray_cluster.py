"""A Ray cluster reached, and jobs worked off over it, one task each; the driver alone keeps results."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from gkestimator.core.errors import GkestimatorError, UsageError, one_line
from gkestimator.core.extras import install_extra

Job = TypeVar("Job")
_TRIES = 3
# Ray ends a program whose head is away for 60 s, without a word that it could catch; one that restarts is back by then.
HEAD_AWAY_S = 40.0
_LOOK_S = 2.0
_AHEAD = 2  # tasks for each CPU of the cluster that wait in Ray at a time


class ClusterLostError(GkestimatorError):
    """Say that a Ray cluster went away during a run."""


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Yield the module ``ray``, connected: to where the program is already, else to ``$RAY_ADDRESS``, else to
    the cluster of this machine; what was connected here is let go at the end. Raises UsageError where Ray or
    a cluster is missing."""
    try:
        import ray
    except ImportError as e:
        raise UsageError(f"engine ray: Ray is missing; {install_extra('ray')}") from e
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as e:
        raise UsageError(
            f"engine ray: no cluster at {address}: {one_line(e, limit=200)} (start one with ray start --head, or set "
            "RAY_ADDRESS)"
        ) from e
    try:
        yield ray
    finally:
        ray.shutdown()


class ClusterHead:
    """Watch the head of the cluster that ``ray`` is connected to."""

    def __init__(self, ray: Any) -> None:
        self.address: str = ray.get_runtime_context().gcs_address
        self._seen = self._looked = time.monotonic()

    def look(self) -> None:
        """Raise ClusterLostError where the head has not answered for ``HEAD_AWAY_S``."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_S).close()
        except OSError as e:
            if now - self._seen > HEAD_AWAY_S:
                raise ClusterLostError(
                    f"the head of the Ray cluster at {self.address} has not answered for {now - self._seen:.0f} s: {e}"
                ) from e
        else:
            self._seen = now


class RayTasks(Generic[Job]):
    """Tasks under way on a cluster, each with the job that it is for. Ray itself tries none of them again: whether
    one that was lost is worth another try is the driver's to say."""

    def __init__(self, ray: Any, task: Callable[..., Any]) -> None:
        self._ray = ray
        self._task = ray.remote(task)
        self._head = ClusterHead(ray)
        self._jobs: dict[Any, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, job: Job, arguments: Sequence[Any], **needs: Any) -> None:
        """Have a node that has what the task ``needs`` call it with ``arguments``."""
        # Ray would repeat a task that kills its worker without a word; the driver counts and says it.
        reference = self._task.options(num_cpus=1, max_retries=0, **needs).remote(*arguments)
        self._jobs[reference] = job

    def finished(self, within_s: float | None = None) -> Iterator[tuple[Job, Any, Exception | None]]:
        """Wait for a task to end; yield its job, and its result or the error by which it was lost. None where none
        ends ``within_s`` seconds. Raises ClusterLostError."""
        done: list[Any] = []
        while not done:
            self._head.look()
            done, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=within_s or _LOOK_S)
            if within_s is not None:
                break
        for reference in done:
            job = self._jobs.pop(reference)
            try:
                result = self._ray.get(reference)
            except self._ray.exceptions.RayError as e:
                yield job, None, e
            else:
                yield job, result, None

    def cancel(self, which: Callable[[Job], bool]) -> Iterator[Job]:
        """End the tasks of those jobs, and yield the jobs."""
        for reference, job in list(self._jobs.items()):
            if which(job):
                self._ray.cancel(reference, force=True)
                yield self._jobs.pop(reference)


def work_on_ray(
    ray: Any,
    jobs: Sequence[Job],
    task: Callable[..., Any],
    arguments: Callable[[Job], Sequence[Any]],
    lost: Callable[[Job, str], Any],
) -> Iterator[tuple[Job, Any]]:
    """Yield each of ``jobs`` with what ``task(job, *arguments(job))`` returns on a node, as they are
    finished. A task whose node or process dies is given out again, three times in all, then answered by
    ``lost`` with the reason."""
    room = max(1, _AHEAD * int(ray.cluster_resources().get("CPU", 1)))
    # Popped from the end, so that the first jobs are the first to go.
    todo = [(job, 1) for job in reversed(jobs)]
    tasks: RayTasks[tuple[Job, int]] = RayTasks(ray, task)
    while todo or len(tasks):
        while todo and len(tasks) < room:
            job, attempt = todo.pop()
            tasks.start((job, attempt), (job, *arguments(job)))
        for (job, attempt), result, error in tasks.finished():
            if error is None:
                yield job, result
            elif attempt < _TRIES:
                todo.append((job, attempt + 1))
            else:
                yield job, lost(job, f"lost {attempt} times on the cluster: {one_line(error, limit=200)}")
