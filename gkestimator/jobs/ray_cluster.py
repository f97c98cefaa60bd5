"""A Ray cluster reached, and jobs worked off over it, one task each; the driver alone keeps results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gkestimator.core.errors import UsageError, one_line

Job = TypeVar("Job")
_TRIES = 3
_AHEAD = 2  # tasks for each CPU of the cluster that wait in Ray at a time


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Yield the module ``ray``, connected: to where the program is already, else to ``$RAY_ADDRESS``, else to the
    cluster of this machine; what was connected here is let go at the end. Raises UsageError where Ray or a cluster is
    missing."""
    try:
        import ray
    except ImportError as e:
        raise UsageError("engine ray: Ray is missing; pip install 'gkestimator[ray]'") from e
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


def work_on_ray(
    ray: Any,
    jobs: Sequence[Job],
    task: Callable[..., Any],
    arguments: Callable[[Job], Sequence[Any]],
    lost: Callable[[Job, str], Any],
) -> Iterator[tuple[Job, Any]]:
    """Yield each of ``jobs`` with what ``task(job, *arguments(job))`` returns on a node, as they are finished. A task
    whose node or process dies is given out again, three times in all, then answered by ``lost`` with the reason."""
    from ray.exceptions import RayError

    remote = ray.remote(task).options(num_cpus=1, max_retries=0)
    room = max(1, _AHEAD * int(ray.cluster_resources().get("CPU", 1)))
    todo = [(job, 0) for job in reversed(jobs)]
    waiting: dict[Any, tuple[Job, int]] = {}
    while todo or waiting:
        while todo and len(waiting) < room:
            job, tried = todo.pop()
            waiting[remote.remote(job, *arguments(job))] = (job, tried + 1)
        done, _ = ray.wait(list(waiting), num_returns=1)
        for reference in done:
            job, tried = waiting.pop(reference)
            try:
                yield job, ray.get(reference)
            except RayError as e:
                if tried < _TRIES:
                    todo.append((job, tried))
                else:
                    yield job, lost(job, f"lost {tried} times on the cluster: {one_line(e, limit=200)}")
