"""What every collector must do; iterates the registry, third parties' collectors included."""

from __future__ import annotations

import importlib.metadata
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from collector_cases import SAMPLES, changed, raw_folder

from gkestimator.cli import run
from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.building import build_dataset
from gkestimator.profiling.building.soundness import check_chunk
from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.collectors import (
    CollectorError,
    choose,
    collector_class,
    collector_names,
    make_collector,
)
from gkestimator.profiling.collectors.base import PASSES
from gkestimator.profiling.collectors.claims import false_claim
from gkestimator.profiling.collectors.registry import COLLECTORS, collector_summaries
from gkestimator.profiling.plan import plan_of, write_plan
from gkestimator.profiling.raw import chunk_folders, read_chunk
from gkestimator.profiling.records import EntryRecord
from gkestimator.tables import KERNEL_DATASET, read_table

THIRD_PARTY = Path(__file__).parents[1] / "data" / "record_spans" / "record_spans.py"
THEIRS = ("lying-spans", "record-spans")
NAMES = (*COLLECTORS, *THEIRS)


@pytest.fixture(autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an installed third party: its module and its metadata, found by importlib.metadata."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(THIRD_PARTY, folder)
    metadata = folder / "record_spans-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: record-spans\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[gkestimator.collectors]\nrecord-spans = record_spans:RecordSpans\nlying-spans = record_spans:LyingSpans\n"
        "broken = record_spans:Missing\nnone-such = json:loads\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("record_spans", None)


def test_third_parties_are_found_by_their_entry_point_and_not_loaded_for_their_names() -> None:
    assert set(THEIRS) < set(collector_names())
    assert collector_summaries()["record-spans"] == "a third party's, of record-spans"
    assert "record_spans" not in sys.modules
    assert collector_class("record-spans").__module__ == "record_spans"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", r"cannot be loaded: AttributeError"),
        ("none-such", "expected a class derived from Collector"),
        ("vtune", "expected auto, .*nsys.*, ncu, .*broken"),
    ],
)
def test_what_is_no_collector_is_one_line(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        choose(name, "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_collector_says_what_it_is(name: str) -> None:
    declared = collector_class(name)
    assert name in THEIRS or declared.name == name
    assert declared.summary.strip() and "\n" not in declared.summary
    assert declared.passes and set(declared.passes) <= set(PASSES)
    assert {pass_name for pass_name, _ in declared.automatic} <= set(declared.passes)
    assert {kind for _, kind in declared.automatic} <= {"cpu", "gpu"}
    assert bool(declared.file) == bool(declared.suffixes)
    assert not declared.file or declared.file.endswith(declared.suffixes)
    assert set(declared.measures) <= {f.name for f in fields(CapturedLaunch)}
    assert declared("cpu").clock_control() == "none"
    for other in set(PASSES) - set(declared.passes):
        with pytest.raises(UsageError, match=f"serves the pass {declared.passes[0]}, not {other}"):
            choose(name, "cpu", other)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_where_it_cannot_be_used_it_says_so_in_one_line(
    name: str, broken: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = collector_class(name).tool
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GKEST_NSIGHT", raising=False)
    monkeypatch.setattr("gkestimator.profiling.tools._installed", lambda _: iter(()))

    def no_torch(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.version", no_torch)
    if tool is not None:
        monkeypatch.setenv(tool.variable, str(tmp_path / "absent") if broken else "")
    reason = make_collector(name, "cuda:0").unavailable()
    needs_nothing = tool is None and not collector_class(name).measures
    assert (reason is None) == needs_nothing
    if reason is not None:
        assert "\n" not in reason and len(reason) < 300
        with pytest.raises(CollectorError) as caught:
            choose(name, "cuda:0", collector_class(name).passes[0])
        assert "\n" not in str(caught.value)


def test_build_accepts_every_collector_that_run_accepts(tmp_path: Path) -> None:
    """``profile run`` took collectors from one list, ``profile build`` from another."""
    info = read_chunk(raw_folder(tmp_path / "raw", "none", "timeline"))
    for name in collector_names():
        check_chunk(replace(info, collector=name), tmp_path / "chunk.json")


@pytest.mark.parametrize("name", COLLECTORS)
def test_what_a_chunk_holds_becomes_rows(name: str, tmp_path: Path) -> None:
    pass_name = collector_class(name).passes[0]
    raw_folder(tmp_path / "raw", name, pass_name)
    result = build_dataset([tmp_path / "raw"], tmp_path / "kernels.csv")
    assert not result.problems
    assert len({row.entry_id for row in result.rows}) == 3
    assert {row.collector for row in result.rows} == {"nsys" if pass_name == "counters" else name}
    if pass_name == "counters":
        assert {row.achieved_occupancy_pct for row in result.rows} == {61.5}
    if name == "kineto":  # microseconds there, nanoseconds in the capture
        assert sorted(r.duration_us for r in result.rows if r.op_type == "Conv") == [9, 11, 102]


def sample(name: str, folder: Path) -> tuple[Capture, Mapping[str, EntryRecord]]:
    """What the collector's own parser reads of its file, and what the child recorded."""
    from gkestimator.profiling.records import read_records

    chunk = raw_folder(folder, name, collector_class(name).passes[0])
    capture = collector_class(name).parse(chunk / read_chunk(chunk).files[0])
    return capture, {r.entry_id: r for r in read_records(chunk / "records.jsonl")}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kernel_has_what_the_collector_measures(name: str, tmp_path: Path) -> None:
    capture, _ = sample(name, tmp_path)
    kernels = [launch for r in capture.ranges for launch in r.launches if launch.kind == "kernel"]
    assert kernels
    for field in collector_class(name).measures:
        assert all(getattr(launch, field) is not None for launch in kernels), field


def judged(
    name: str, claimed: EntryRange, records: Mapping[str, EntryRecord], *, on_cpu: bool = False
) -> str | None:
    timed = collector_class(name).passes[0] == "timeline"
    record = records[claimed.entry_id] if timed else None
    return false_claim(claimed, timed=timed, on_cpu=on_cpu, record=record)


def each(change: Callable[[CapturedLaunch], CapturedLaunch]) -> Callable[[EntryRange], EntryRange]:
    return lambda told: replace(told, launches=tuple(map(change, told.launches)))


def shrunk(told: EntryRange) -> EntryRange:
    """Microseconds taken for nanoseconds, everywhere."""
    launches = tuple(
        replace(n, start_ns=n.start_ns // 1000, duration_ns=n.duration_ns // 1000) for n in told.launches
    )
    return replace(told, start_ns=told.start_ns // 1000, end_ns=told.end_ns // 1000, launches=launches)


LIES: dict[str, Callable[[EntryRange], EntryRange]] = {
    "negative duration": each(lambda n: replace(n, duration_ns=-n.duration_ns)),
    "duration that is no number": each(lambda n: replace(n, duration_ns=math.nan)),  # type: ignore[arg-type]
    "endless duration": each(lambda n: replace(n, duration_ns=math.inf)),  # type: ignore[arg-type]
    "start that is no number": each(lambda n: replace(n, start_ns=math.nan)),  # type: ignore[arg-type]
    "kind that there is not": each(lambda n: replace(n, kind="miracle")),
    "counter below 0": each(lambda n: replace(n, counters={"dram__bytes.sum": -1.0})),
    "counter that is no number": each(lambda n: replace(n, counters={"dram__bytes.sum": math.nan})),
}
LIES_OF_TIME: dict[str, Callable[[EntryRange], EntryRange]] = {
    "durations a thousand times too long": each(lambda n: replace(n, duration_ns=1000 * n.duration_ns)),
    "durations a thousand times too short": each(lambda n: replace(n, duration_ns=n.duration_ns // 1000)),
    "all times a thousand times too short": shrunk,
    "kernel of another time": lambda told: replace(
        told, launches=(*told.launches, replace(told.launches[-1], start_ns=told.end_ns + 10**12))
    ),
    "range that ends before it begins": lambda told: replace(
        told, start_ns=told.end_ns, end_ns=told.start_ns
    ),
}


@pytest.mark.parametrize("lie", [*LIES, *LIES_OF_TIME])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_lie_is_caught_and_the_truth_is_not(name: str, lie: str, tmp_path: Path) -> None:
    capture, records = sample(name, tmp_path)
    assert [judged(name, told, records) for told in capture.ranges] == [None] * 3
    if lie in LIES_OF_TIME and collector_class(name).passes[0] != "timeline":
        return  # a report of counters tells no times
    for told in capture.ranges:
        line = judged(name, {**LIES, **LIES_OF_TIME}[lie](told), records)
        assert line is not None and "\n" not in line


@pytest.mark.parametrize("name", SAMPLES)
def test_kernels_of_an_entry_that_ran_on_the_cpu_are_not_believed(name: str, tmp_path: Path) -> None:
    capture, records = sample(name, tmp_path)
    for told in capture.ranges:
        assert "expected none: the entry ran on the CPU" in (judged(name, told, records, on_cpu=True) or "")


def relu_plan(path: Path) -> None:
    node = FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("x",), outputs=("y",))
    tensor = FragmentTensor(name="x", dtype=DType.FLOAT, shape=(64, 1024))
    fragment = Fragment(opsets={"": 17}, nodes=(node,), tensors=(tensor,), outputs=("y",))
    path.parent.mkdir(exist_ok=True)
    write_plan(plan_of([(fragment, "fp32", "test")], runtime="onnxruntime"), path)


def profiled(folder: Path, collector: str) -> int:
    relu_plan(folder / "plan.json")
    command = ["profile", "run", str(folder / "plan.json"), "-o", str(folder / "raw"), "--device", "cpu"]
    return run([*command, "--collector", collector, "--repeats", "5", "--retries", "0"])


def built(folder: Path) -> int:
    return run(["profile", "build", str(folder / "raw"), "-o", str(folder / "kernels.csv")])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "record-spans"])
def test_what_run_measures_build_reads(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert profiled(tmp_path, name) == 0, capsys.readouterr().err
    assert built(tmp_path) == 0, capsys.readouterr().err
    rows = read_table(tmp_path / "kernels.csv", KERNEL_DATASET)
    assert [row.collector for row in rows] == [name]


@pytest.mark.slow
def test_a_collector_that_lies_is_caught_by_run_and_by_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    assert profiled(tmp_path, "lying-spans") == 1
    said = capsys.readouterr().err
    assert "found a kernel of a GPU, expected none: the entry ran on the CPU" in said
    assert profiled(tmp_path / "honest", "record-spans") == 0
    (chunk,) = chunk_folders(tmp_path / "honest" / "raw")
    changed(chunk, collector="lying-spans")  # as a folder of a stranger would come
    capsys.readouterr()
    assert built(tmp_path / "honest") == 2
    said = capsys.readouterr().err
    assert "lying-spans claims what cannot be" in said and said.count("\n") == 1


def test_the_command_line_names_every_collector(capsys: pytest.CaptureFixture[str]) -> None:
    summaries: dict[str, Any] = collector_summaries()
    run(["profile", "run", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in summaries)
