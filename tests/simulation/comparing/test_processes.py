"""A process that dies while jobs are being handed out: the pool refuses the next one, and nothing is lost. (A real one cannot
be made to die at that moment; test_resumed.py kills real ones.)"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from gkestimator.jobs import processes


class Pool:
    """Runs at once; ``breaks``: the submission (from 0) that finds the pool broken."""

    def __init__(self, breaks: int | None) -> None:
        self.left = breaks

    def submit(self, function: Callable[[Any], Any], job: Any) -> Future[Any]:
        if self.left == 0:
            raise BrokenProcessPool
        self.left = None if self.left is None else self.left - 1
        future: Future[Any] = Future()
        future.set_result(function(job))
        return future


def computed(job: Any) -> Any:
    return {job: {"status": "ok"}}


def lost(job: Any, reason: str) -> Any:
    return {job: {"status": "failed", "reason": reason}}


@pytest.mark.parametrize("breaks", [0, 1, 3])
def test_a_pool_that_refuses_a_job(monkeypatch: pytest.MonkeyPatch, breaks: int) -> None:
    pools = iter([Pool(breaks)])

    @contextlib.contextmanager
    def pool(count: int) -> Iterator[Any]:
        yield next(pools, Pool(None))

    monkeypatch.setattr(processes, "_pool", pool)
    jobs: list[Any] = ["a", "b", "c", "d", "e"]
    found = dict(processes.work_in_processes(jobs, 2, computed, lost))
    assert found == {job: {job: {"status": "ok"}} for job in jobs}
