"""What every run keeps: chunks that are whole or not there, one reason for its end, logs of children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gkestimator.jobs import ray_cluster
from gkestimator.jobs.children import bound_log, end_guarded, last_words, log_end, start_guarded
from gkestimator.jobs.ray_cluster import work_on_ray
from gkestimator.jobs.stopping import RunLog, Stop
from gkestimator.jobs.store import ChunkStore


def test_a_chunk_counts_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    chunks = ChunkStore(tmp_path)
    with chunks.making("000001-cpu") as folder:
        (folder / "records").write_text("whole")
        assert list(chunks.unfinished()) == ["000001-cpu"]
        chunks.commit(folder)
    assert (tmp_path / "000001-cpu" / "records").read_text() == "whole" and not chunks.unfinished()


def test_a_chunk_that_fails_leaves_nothing(tmp_path: Path) -> None:
    chunks = ChunkStore(tmp_path)
    with pytest.raises(ZeroDivisionError), chunks.making("000001-cpu") as folder:
        (folder / "records").write_text("half")
        raise ZeroDivisionError
    assert not any(tmp_path.iterdir())


def test_what_a_killed_run_left_is_told_and_removed(tmp_path: Path) -> None:
    left = tmp_path / ".aside-000002-cpu"
    left.mkdir()
    (left / "records").write_text("half")
    (tmp_path / "000001-cpu").mkdir()
    assert ChunkStore(tmp_path).clean() == 1
    assert [p.name for p in tmp_path.iterdir()] == ["000001-cpu"]


def test_the_first_reason_to_stop_stays_and_problems_are_said_once() -> None:
    log = RunLog()
    log.stop("stopped: the disk is full")
    log.stop("interrupted", 130)
    for _ in range(3):
        log.problem("x: failed")
    outcome = log.outcome()
    assert (outcome["stopped"], outcome["stop_status"]) == ("stopped: the disk is full", 1)
    assert outcome["problems"] == ("x: failed",) and outcome["messages"] == ()


@pytest.mark.parametrize(("asked", "status"), [(True, 130), (False, 0)])
def test_why_a_run_ended(asked: bool, status: int) -> None:
    stop, log = Stop(0.0), RunLog()
    if asked:
        stop.ask()
    log.stop_for(stop)
    assert log.stop_status == status


def test_a_guard_sees_its_child_end_whatever_its_starter_blocked() -> None:
    """Masks of signals are inherited: with SIGCHLD blocked, the guard never learnt that its child was done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, signal.SIGTERM))
    try:
        process = start_guarded([sys.executable, "-c", "raise SystemExit(5)"], subprocess.DEVNULL, os.environ)
        assert process.wait(30) == 5
        process = start_guarded(
            [sys.executable, "-c", "import time; time.sleep(60)"], subprocess.DEVNULL, os.environ
        )
        time.sleep(0.5)
        process.terminate()
        assert process.wait(30) == 137
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_guarded_child_ends_with_all_below_it(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    code = (
        "import subprocess, sys, time; from pathlib import Path\n"
        "below = subprocess.Popen(['sleep', '600'])\n"
        "Path(sys.argv[1]).write_text(str(below.pid)); time.sleep(600)"
    )
    process = start_guarded([sys.executable, "-c", code, str(pids)], subprocess.DEVNULL, os.environ)
    end = time.monotonic() + 20
    while not (pids.exists() and pids.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    assert end_guarded(process) == 137
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log_end(log, 100)) == "no word"
    log.write_text("a" * 200 + "\nthe last line\n\n")
    assert last_words(log_end(log, 100)) == "the last line"
    bound_log(log, 500)
    assert log.stat().st_size > 200
    bound_log(log, 100)
    assert log.stat().st_size == 0


class _Ray:
    """A cluster of one node on which the first tries of a job are lost."""

    class exceptions:  # noqa: N801 - Ray's name
        class RayError(Exception):
            pass

    def __init__(self, losses: int, head: str = "127.0.0.1:1") -> None:
        self.losses = losses
        self.gcs_address = head

    def get_runtime_context(self) -> _Ray:
        return self

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def remote(self, task: Any) -> Any:
        return type("Task", (), {"options": lambda own, **_: own, "remote": lambda own, *a: (task, a)})()

    def wait(self, references: list[Any], *, num_returns: int, timeout: float | None) -> Any:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Any) -> Any:
        task, arguments = reference
        if self.losses:
            self.losses -= 1
            raise self.exceptions.RayError("the node died")
        return task(*arguments)


@pytest.mark.parametrize(("losses", "answer"), [(2, 10), (3, "lost 3 times")])
def test_a_lost_task_is_given_out_three_times(losses: int, answer: object) -> None:
    ray = _Ray(losses)
    done = work_on_ray(ray, [1], lambda job, factor: job * factor, lambda _: [10], lambda _, why: why[:12])
    assert list(done) == [(1, answer)]


class _Silent(_Ray):
    """A cluster whose tasks never end."""

    def wait(self, references: list[Any], *, num_returns: int, timeout: float | None) -> Any:
        return [], references


def test_a_head_that_stays_away_ends_the_run_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would end the process after a minute, without a word of ours."""
    monkeypatch.setattr(ray_cluster, "HEAD_AWAY_S", 0.0)
    monkeypatch.setattr(ray_cluster, "_LOOK_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ray_cluster.ClusterHead(_Silent(0, address)).look()
    works = work_on_ray(_Silent(0, address), [1], lambda job: job, lambda _: [], lambda _, why: why)
    with pytest.raises(
        ray_cluster.ClusterLostError, match=f"the head of the Ray cluster at {address} has not"
    ):
        list(works)
