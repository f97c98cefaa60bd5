"""A comparison that is cut off: by a kill in its midst, a worker that dies, a node of the cluster that goes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from _dying import dying
from _specs import cells, command, environment, results, write_spec

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.jobs.guard import descendants
from gkestimator.simulation.comparing import run as comparing_run
from gkestimator.simulation.comparing.report import write_report
from gkestimator.simulation.comparing.run import run_comparison
from gkestimator.simulation.comparing.spec import read_spec

MANY = {"rate_scale": [x / 20 for x in range(1, 41)], "duration_s": 8}


def lives(pid: int) -> bool:
    """Return whether a process is there and no corpse that nobody has taken away yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_in_its_midst_it_leaves_nobody_and_goes_on_where_it_was(
    tmp_path: Path, which: signal.Signals
) -> None:
    """SIGINT comes from a terminal, to the whole group, and is answered in a line; the others to the command alone."""
    spec, out = write_spec(tmp_path, **MANY), tmp_path / "out"
    running = subprocess.Popen(
        command(spec, "-o", out, "--processes", 2),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(), start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 120
    while running.poll() is None and time.monotonic() < end and len(list(out.glob("cells/*.json"))) < 5:
        time.sleep(0.002)
    workers = descendants(running.pid)
    assert len(workers) >= 2
    asked_at = time.monotonic()
    (os.killpg if which is signal.SIGINT else os.kill)(running.pid, which)
    _, said = running.communicate(timeout=30)  # which ends when nobody holds stderr any more
    assert running.returncode == (130 if which is signal.SIGINT else -which)
    if which is signal.SIGINT:
        assert said == b"gkest: error: interrupted\n"
    while alive := [pid for pid in workers if lives(pid)]:
        assert time.monotonic() - asked_at < 5, alive
        time.sleep(0.02)
    kept = cells(out)  # each of them whole
    assert 5 <= len(kept) < 80 and not (out / "results.csv").exists()
    times = {p: p.stat().st_mtime_ns for p in out.glob("cells/*.json")}
    asked = read_spec(spec)
    found = run_comparison(asked, out, processes=1)
    assert found.computed == 80 - len(kept)
    assert {p: p.stat().st_mtime_ns for p in times} == times
    write_report(asked, found, out)
    fresh = run_comparison(asked, tmp_path / "fresh", processes=1)
    write_report(asked, fresh, tmp_path / "fresh")
    assert results(out) == results(tmp_path / "fresh")


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_own_cells_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing_run, "compute", dying)
    monkeypatch.setenv("GKEST_TEST_DIES", str(tmp_path))
    spec = read_spec(write_spec(tmp_path, rate_scale=[0.25, 0.5, 1.0, 1.5], policies=["exclusive"]))
    found = run_comparison(spec, tmp_path / "out", processes=2)
    by = {job.labels["rate_scale"]: cell for job, _, cell in found.cells}
    assert [by[x]["status"] for x in (0.25, 0.5, 1.0, 1.5)] == ["ok", "ok", "failed", "ok"]
    assert by[1.0]["reason"] == "the process that computed it died twice (out of memory?)"


def test_an_engine_or_a_number_of_processes_that_is_none(tmp_path: Path) -> None:
    spec = read_spec(write_spec(tmp_path))
    with pytest.raises(UsageError, match="engine 'dask' is not known, expected one of local, ray"):
        run_comparison(spec, tmp_path / "out", engine="dask")
    with pytest.raises(UsageError, match="processes: found 0, expected at least 1"):
        run_comparison(spec, tmp_path / "out", processes=0)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A head that computes nothing and two nodes of one CPU."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    small = {"object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        made.first = made.add_node(num_cpus=1, **small)
        made.add_node(num_cpus=1, **small)
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.mark.slow
def test_ray_finds_what_one_machine_finds_though_a_node_is_lost(cluster: Any, tmp_path: Path) -> None:
    lines = "".join(f"{s / 5},{'ab'[s % 2]}\n" for s in range(60))
    (tmp_path / "t.csv").write_text("time_s,model\n" + lines)
    trace = {"trace": "t.csv", "label": "trace", "loop": True}
    spec = read_spec(write_spec(tmp_path, **(MANY | {"duration_s": 30}), arrivals=["poisson", trace]))
    out = tmp_path / "ray"

    def kill_midway() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end and len(list(out.glob("cells/*.json"))) < 6:
            time.sleep(0.01)
        cluster.remove_node(cluster.first, allow_graceful=False)

    killer = threading.Thread(target=kill_midway)
    killer.start()
    far = run_comparison(spec, out, engine="ray")
    killer.join()
    near = run_comparison(spec, tmp_path / "local", processes=1)
    assert far.computed == near.computed == 160
    for found, folder in ((far, out), (near, tmp_path / "local")):
        write_report(spec, found, folder)
    assert results(out) == results(tmp_path / "local")
    assert {line["status"] for line in results(out)} == {"ok"}


@pytest.mark.slow
def test_a_head_that_dies_is_said_in_a_line(cluster: Any, tmp_path: Path) -> None:
    spec, out = write_spec(tmp_path, **(MANY | {"duration_s": 900})), tmp_path / "out"
    code = (
        "import sys; from gkestimator.jobs import ray_cluster; ray_cluster.HEAD_AWAY_S = 3.0\n"
        "from gkestimator.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    running = subprocess.Popen(
        [sys.executable, "-P", "-c", code, "compare", str(spec), "-o", str(out), "--engine", "ray"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment() | {"RAY_ADDRESS": cluster.address},
    )  # fmt: skip
    end = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < end and not list(out.glob("cells/*.json")):
        time.sleep(0.05)
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    _, said = running.communicate(timeout=50)
    assert running.returncode == 2
    assert said.decode().startswith("gkest: error: the head of the Ray cluster at") and said.count(b"\n") == 1


def test_without_ray_it_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=re.escape(f"engine ray: Ray is missing; {install_extra('ray')}")):
        run_comparison(read_spec(write_spec(tmp_path)), tmp_path / "out", engine="ray")
