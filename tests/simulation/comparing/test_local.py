"""A process that dies while jobs are being handed out: the pool refuses the next one, and nothing is lost. (A real one cannot
be made to die at that moment; test_resumed.py kills real ones.)"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from gkestimator.simulation.comparing import local


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


@pytest.mark.parametrize("breaks", [0, 1, 3])
def test_a_pool_that_refuses_a_job(monkeypatch: pytest.MonkeyPatch, breaks: int) -> None:
    pools = iter([Pool(breaks)])

    @contextlib.contextmanager
    def pool(processes: int) -> Iterator[Any]:
        yield next(pools, Pool(None))

    monkeypatch.setattr(local, "_pool", pool)
    monkeypatch.setattr(local, "compute", lambda job: {job: {"status": "ok"}})
    jobs: list[Any] = ["a", "b", "c", "d", "e"]
    found = dict(local.run_locally(jobs, 2))
    assert found == {job: {job: {"status": "ok"}} for job in jobs}
