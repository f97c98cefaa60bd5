"""Jobs worked off by processes of this machine, of which none outlives its owner."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import TypeVar

from gkestimator.jobs.children import die_with, inherited

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
    """Yield each of ``jobs`` with its result, as they are finished. A job whose process dies (killed, out of
    memory) is tried once more by itself, then answered by ``lost`` with the reason. ``compute`` is sent to
    the processes: a function of a module."""
    if processes <= 1:
        for job in jobs:
            yield job, compute(job)
        return
    left = [(job, 1) for job in jobs]
    while left:
        # After a death one at a time: so it is seen whose fault it was.
        alone = any(attempt > 1 for _, attempt in left)
        turn = left[:1] if alone else left
        died: list[tuple[Job, int]] = []
        with _pool(1 if alone else processes) as pool:
            begun = yield from _work(pool, turn, 2 * processes, compute, died)
        left = left[begun:]
        for job, attempt in reversed(died):
            if attempt < _TRIES:
                left.insert(0, (job, attempt + 1))
            else:
                yield job, lost(job, DIED_TWICE)


def _work(
    pool: ProcessPoolExecutor,
    turn: Sequence[tuple[Job, int]],
    most: int,
    compute: Callable[[Job], Result],
    died: list[tuple[Job, int]],
) -> Generator[tuple[Job, Result], None, int]:
    """Yield results until all of ``turn`` is done or a process ``died``; return how many jobs were handed
    out. No more than ``most`` wait in the pool at a time: one that breaks loses no more."""
    waiting: dict[Future[Result], tuple[Job, int]] = {}
    begun = 0
    # A broken pool takes no more jobs: those that were not begun go to the next pool.
    while begun < len(turn) and not died:
        begun += 1
        try:
            with _without_interrupts():
                waiting[pool.submit(compute, turn[begun - 1][0])] = turn[begun - 1]
        except BrokenProcessPool:  # a process died while others were being handed out
            died.append(turn[begun - 1])
        if len(waiting) >= most:
            yield from _finished(waiting, died)
    while waiting:
        yield from _finished(waiting, died)
    return begun


def _finished(
    waiting: dict[Future[Result], tuple[Job, int]], died: list[tuple[Job, int]]
) -> Iterator[tuple[Job, Result]]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        job, attempt = waiting.pop(future)
        try:
            result = future.result()
        except BrokenProcessPool:
            died.append((job, attempt))
        else:
            yield job, result


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    # One thread each: several processes that each use every core are slower than one.
    with inherited({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}):
        spawning = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(processes, mp_context=spawning, initializer=_begin_worker)
        try:
            yield pool
        except BaseException:
            # Nobody wants what they are at: waiting for it would hold Ctrl-C up. (kill_workers() is of Python 3.14.)
            for process in list(pool._processes.values()):
                process.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; a process that is started meanwhile never sees it: it reaches the owner alone, which says in a
    line what all of them together would say in eighty."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The tracker's start, which comes with that of the first process, would let it through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = multiprocessing.parent_process()
    if owner is not None:
        die_with(owner.pid, owner.sentinel)
