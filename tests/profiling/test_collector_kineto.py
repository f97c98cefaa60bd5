"""kineto and none: a trace is whole or refused; torch's own trace where torch is."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from gkestimator.core.errors import OutputError, UsageError
from gkestimator.profiling.collectors import COLLECTORS, CollectorError, choose, make_collector, probe
from gkestimator.profiling.collectors.base import PASSES
from gkestimator.profiling.collectors.kineto import _BLOCK, kineto_ranges
from gkestimator.profiling.executors.kineto import KinetoTrace


def trace(
    path: Path, names: list[str], *, cuda: bool = False, kernels: bool = True, padding: int = 0
) -> Path:
    events = [{"ph": "X", "name": f"gkestimator:{n}#5", "ts": 1, "dur": 2} for n in names]
    if cuda:
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC"})
    if cuda and kernels:
        events.append({"ph": "X", "cat": "kernel", "name": "add"})
    text = json.dumps({"padding": "x" * padding, "traceEvents": events}, indent=1)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_every_entry_is_marked(tmp_path: Path) -> None:
    trace(tmp_path / "trace.json.gz", ["a", "b"])
    collector = make_collector("kineto", "cpu")
    assert collector.finish(tmp_path, ["a", "b"], "") == ("trace.json.gz",)
    with pytest.raises(CollectorError, match=r"lacks the ranges of 1 of 2 entries \(c"):
        collector.finish(tmp_path, ["a", "c"], "")


def test_on_a_gpu_cuda_calls_must_be_there(tmp_path: Path) -> None:
    collector = make_collector("kineto", "cuda:0")
    trace(tmp_path / "trace.json.gz", ["a"])
    with pytest.raises(CollectorError, match="recorded no CUDA call"):
        collector.finish(tmp_path, ["a"], "")
    trace(tmp_path / "trace.json.gz", ["a"], cuda=True)
    assert collector.finish(tmp_path, ["a"], "")


def test_launches_without_a_single_kernel_are_no_measurement(tmp_path: Path) -> None:
    trace(tmp_path / "trace.json.gz", ["a"], cuda=True, kernels=False)
    with pytest.raises(CollectorError, match="launches but no kernel"):
        make_collector("kineto", "cuda:0").finish(tmp_path, ["a"], "")


def test_a_name_across_two_blocks_is_found(tmp_path: Path) -> None:
    for padding in range(_BLOCK - 120, _BLOCK, 7):
        assert kineto_ranges(trace(tmp_path / "t.gz", ["an-entry"], padding=padding))[0] == {"an-entry"}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_cut_trace_is_refused(tmp_path: Path, share: float) -> None:
    whole = trace(tmp_path / "trace.json.gz", [f"e{i}" for i in range(500)]).read_bytes()
    (tmp_path / "trace.json.gz").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CollectorError):
        make_collector("kineto", "cpu").finish(tmp_path, ["e1"], "error: torch died")
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [{"name": "gkestimator:e1#1", '))
    with pytest.raises(CollectorError, match="its end is missing"):
        make_collector("kineto", "cpu").finish(tmp_path, ["e1"], "")


def test_no_trace_says_what_the_child_said(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match="wrote no trace; the child said: RuntimeError: error 5"):
        make_collector("kineto", "cpu").finish(tmp_path, ["a"], "x\nRuntimeError: error 5\n")


def test_torch_without_cuda_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.9.0+cpu")
    assert "built without CUDA" in (make_collector("kineto", "cuda:0").unavailable() or "")
    assert make_collector("kineto", "cpu").unavailable() is None


def test_torchs_own_trace() -> None:
    pytest.importorskip("torch")
    assert probe(make_collector("kineto", "cpu"), "cpu") is None


@pytest.mark.parametrize("name", COLLECTORS)
def test_every_collector_keeps_the_protocol(name: str) -> None:
    collector = make_collector(name, "cpu")
    assert collector.name == name
    assert set(collector.passes) <= set(PASSES)
    assert collector.clock_control() == "none"
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in collector.environment().items())


def test_none_runs_the_child_as_it_is(tmp_path: Path) -> None:
    collector = choose("none", "cpu")
    assert collector.command(["a", "b"], tmp_path) == ["a", "b"]
    assert collector.finish(tmp_path, ["a"], "") == ()
    assert collector.capture(tmp_path) is None


def test_auto_without_nsys_is_none_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gkestimator.profiling.collectors.base.find_tool", lambda name: None)
    assert choose("auto", "cpu").name == "none"


def test_wrong_names_and_passes() -> None:
    with pytest.raises(UsageError, match="expected auto, nsys, ncu, kineto, none"):
        choose("vtune", "cpu")
    with pytest.raises(UsageError, match="serves the pass timeline, not counters"):
        choose("none", "cpu", "counters")


def test_a_gpu_that_takes_no_work_is_said_in_one_line_before_anything_is_recorded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trace = KinetoTrace(tmp_path / "trace.json.gz", cuda=False)
    made: list[str] = []
    trace._make = lambda: made.append("session") or nullcontext()  # type: ignore[func-returns-value]
    trace._cuda = True

    def ones(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    trace._torch = SimpleNamespace(ones=ones)
    with pytest.raises(UsageError, match="--kineto: the GPU takes no work: CUDA error: out of memory"):
        trace.start()
    assert made == ["session"]


@pytest.mark.parametrize("name", ["trace.json.gz", "trace.json"])
def test_the_trace_is_zipped_here_for_torch_would_take_ten_times_as_long(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    trace, asked = KinetoTrace(tmp_path / name, cuda=False), list[str]()

    def export(path: str) -> None:
        asked.append(Path(path).name)
        Path(path).write_text('{"traceEvents": []}')

    trace._profile = SimpleNamespace(stop=lambda: None, export_chrome_trace=export)
    trace.stop()
    assert [n.endswith(".json") for n in asked] == [True]
    assert [p.name for p in tmp_path.iterdir()] == [name]
    written = (tmp_path / name).read_bytes()
    assert (gzip.decompress(written) if name.endswith(".gz") else written) == b'{"traceEvents": []}'


def test_a_trace_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    trace = KinetoTrace(tmp_path / "trace.json.gz", cuda=False)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    trace._profile = SimpleNamespace(
        stop=lambda: None, export_chrome_trace=lambda path: Path(path).write_text("{}")
    )
    monkeypatch.setattr("gkestimator.profiling.executors.kineto.shutil.copyfileobj", full)
    with pytest.raises(OutputError, match="the trace cannot be written: .*No space left"):
        trace.stop()
    assert list(tmp_path.iterdir()) == []
