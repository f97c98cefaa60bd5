"""Jobs worked off by processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_TRIES = 2
DIED_TWICE = "the process that computed it died twice (out of memory?)"


def work_in_processes(
    jobs: Sequence[Job],
    processes: int,
    compute: Callable[[Job], Result],
    lost: Callable[[Job, str], Result],
) -> Iterator[tuple[Job, Result]]:
    """Yield each of ``jobs`` with its result, as they are finished. A job whose process dies (killed, out of memory) is
    tried once more by itself, then answered by ``lost`` with the reason. ``compute`` is sent to the processes: a
    function of a module."""
    if processes <= 1:
        for job in jobs:
            yield job, compute(job)
        return
    left = list(enumerate(jobs))
    tries = [0] * len(jobs)
    while left:
        alone = max(tries[n] for n, _ in left) > 0
        died: list[tuple[int, Job]] = []
        with _pool(1 if alone else processes) as pool:
            waiting: dict[Future[Result], tuple[int, Job]] = {}
            todo = iter(left[:1] if alone else left)
            rest = left[1:] if alone else []
            # Two jobs a process are handed out at a time: a pool that breaks loses no more.
            for n, job in todo:
                try:
                    waiting[pool.submit(compute, job)] = (n, job)
                except BrokenProcessPool:  # a process died while others were being handed out
                    died.append((n, job))
                    break
                if len(waiting) < 2 * processes:
                    continue
                yield from _finished(waiting, died)
                if died:
                    break
            while waiting:
                yield from _finished(waiting, died)
            rest += list(todo)
        for n, _ in died:
            tries[n] += 1
        given_up = [(n, job) for n, job in died if tries[n] >= _TRIES]
        for _, job in given_up:
            yield job, lost(job, DIED_TWICE)
        left = [(n, job) for n, job in died if tries[n] < _TRIES] + rest


def _finished(
    waiting: dict[Future[Result], tuple[int, Job]], died: list[tuple[int, Job]]
) -> Iterator[tuple[Job, Result]]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        n, job = waiting.pop(future)
        try:
            found = future.result()
        except BrokenProcessPool:
            died.append((n, job))
        else:
            yield job, found


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[Any]:
    # One thread each: several processes that each use every core are slower than one.
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
