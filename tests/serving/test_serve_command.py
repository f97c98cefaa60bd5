"""``gkest serve`` as a process: what it refuses in a line, how it ends, and that nothing of it outlives it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from _served_plans import write_inputs

from gkestimator.cli import run
from gkestimator.serving.state import read_state

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("serving"))


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """Return the one line by which ``gkest serve`` refuses ``arguments``."""
    given = list(arguments)
    if "--table" not in given:
        given += ["--table", str(folder / "table.csv")]
    assert run(["serve", *given]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_what_is_wrong_is_said_in_a_line(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plan = str(folder / "plan.json")
    assert "models: found none, expected a folder" in refused(capsys, folder, plan)
    assert "bert.onnx: found no such file" in refused(capsys, folder, plan, "--models", str(folder))
    assert "--cluster is missing" in refused(capsys, folder, plan, "--emulate", "--replan", "usher")
    again = ("--replan", "usher", "--cluster", str(folder / "cluster.yaml"))
    assert "unknown policy 'best'" in refused(capsys, folder, plan, "--emulate", *again, "--policy", "best")
    assert "has no option haste" in refused(capsys, folder, plan, "--emulate", *again, "--option", "haste=1")
    assert "has no use with --replan none" in refused(capsys, folder, plan, "--emulate", "--policy", "gkest")
    assert "loopback address alone" in refused(capsys, folder, plan, "--emulate", "--host", "0.0.0.0")
    assert "expected HOST:PORT" in refused(capsys, folder, plan, "--emulate", "--address", "somewhere")


def test_an_address_that_does_not_answer(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = refused(capsys, folder, str(folder / "plan.json"), "--emulate", "--address", f"127.0.0.1:{port}")
    assert "no Ray cluster answers there" in line


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(capsys, folder, str(folder / "plan.json"), "--emulate", "--port", str(port))
    assert f"port {port} of 127.0.0.1: Address already in use" in line


def test_a_plan_that_does_not_fit_the_table(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    document = json.loads((folder / "plan.json").read_text())
    document["gpus"][0]["replicas"][0]["batch_size"] = 3
    (tmp_path / "plan.json").write_text(json.dumps(document))
    line = refused(capsys, folder, str(tmp_path / "plan.json"), "--emulate")
    assert "at batch 3" in line


@pytest.fixture
def port() -> int:
    """A port of this machine that nothing listens at: tests of this file run beside one another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@pytest.fixture
def started(folder: Path, tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A service in a process of its own that has just been started; the state is in ``tmp_path``."""
    command = [sys.executable, "-c", "from gkestimator.cli import main; main()", "serve", "--emulate"]
    command += [
        str(folder / "plan.json"),
        "--table",
        str(folder / "table.csv"),
        "--port",
        str(port),
        "--state",
        str(tmp_path / "state.json"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    yield process
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.fixture
def served(started: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The same once its plan serves."""
    assert started.stderr is not None
    said = []
    for line in started.stderr:
        said.append(line)
        if "is emulated at" in line:
            break
    assert any("is emulated at" in line for line in said), said
    return started


def infer(port: int) -> bytes:
    """Return the answer of the service at ``port`` to a request of one sample."""
    tensor = {"name": "input", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    body = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/resnet/infer", data=body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        content: bytes = answer.read()
        return content


def below(pid: int) -> set[int]:
    """Return the processes below ``pid``."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {}
    for line in listed.splitlines():
        child, parent = map(int, line.split())
        parents[child] = parent
    found: set[int] = set()
    for child in parents:
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and child != pid:
            found.add(child)
    return found


def lives(pid: int) -> bool:
    """Return whether a process is there and no corpse that nobody has taken away yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def marked(pid: int) -> bool:
    """Return whether a process can be told to be of a service, or is what watches it; one that has ended will do."""
    try:
        return any(
            b"GKEST_SERVICE=" in Path(f"/proc/{pid}/{file}").read_bytes() for file in ("environ", "cmdline")
        )
    except OSError:
        return not lives(pid)


@pytest.mark.slow
def test_ctrl_c_ends_it_in_order(served: subprocess.Popen[str], tmp_path: Path, port: int) -> None:
    assert json.loads(infer(port))["outputs"][0]["data"] == [0.0]
    served.send_signal(signal.SIGINT)
    assert served.wait(60) == 130
    assert read_state(tmp_path / "state.json").version == 1


@pytest.mark.slow
def test_a_service_that_only_begins_is_ended_in_order(started: subprocess.Popen[str], port: int) -> None:
    """Ray sets handlers of signals too: before ours stood, SIGTERM ended it with a trace of Ray's, without a drain."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 0
    assert said.rstrip().endswith("gkest: ended")


@pytest.mark.slow
def test_nothing_outlives_a_kill(served: subprocess.Popen[str], port: int) -> None:
    infer(port)
    children = below(served.pid)
    assert len(children) > 4
    # Ray's names for its processes are written over their environments: what is there differs from run to run.
    assert [pid for pid in children if not marked(pid)] == []
    gone_within(served, signal.SIGKILL)


@pytest.mark.slow
def test_one_that_starts_is_ended_by_a_signal_and_leaves_nothing(started: subprocess.Popen[str]) -> None:
    """Ray's own handler, while it starts, would make an exit status of 15 of it."""
    time.sleep(3.0)
    gone_within(started, signal.SIGTERM)
    assert started.returncode in (0, -signal.SIGTERM)  # the latter before our first line ran


def gone_within(process: subprocess.Popen[str], which: signal.Signals, seconds: float = 5.0) -> None:
    """Send ``which`` and see that no process below lives once ``process`` has been gone for ``seconds``."""
    children = below(process.pid)
    process.send_signal(which)
    process.wait(30)
    until = time.monotonic() + seconds
    while alive := {pid for pid in children if lives(pid)}:
        assert time.monotonic() < until, alive
        time.sleep(0.1)
