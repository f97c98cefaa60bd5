"""A machine without profilers or GPUs, for the runner's tests.

As a script, ``fakes.py PLAN RAW COLLECTOR``: a run into RAW, to be killed by a test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator.profiling.captures import Capture
from gkestimator.profiling.collectors.base import CollectorError
from gkestimator.profiling.plan import SweepPlan, read_plan
from gkestimator.profiling.raw import DeviceFacts, chunk_folders, read_chunk
from gkestimator.profiling.records import EntryRecord, read_records
from gkestimator.profiling.running import Limits, Machine, RunOptions, RunReport, run_plan

FAKE_CHILD = Path(__file__).with_name("fake_child.py")


LIMITS = Limits(entry_s=1.0, start_s=5.0, finish_s=1.0)
QUICK = RunOptions(devices=("cpu",), chunk_seconds=0.55, limits=LIMITS, min_free_mb=1)


def records(raw: Path, pass_name: str = "timeline") -> dict[str, EntryRecord]:
    """Of all committed chunks; an entry recorded twice in first attempts is an error, and so is a chunk at odds with
    its records."""
    found: dict[str, EntryRecord] = {}
    for folder in chunk_folders(raw):
        info = read_chunk(folder)
        lines = list(read_records(folder / "records.jsonl"))
        assert [r.entry_id for r in lines] == list(info.entries)
        assert all((folder / name).is_file() for name in info.files)
        if info.pass_name == pass_name and info.attempt == 1:
            assert not found.keys() & set(info.entries)
            found |= {r.entry_id: r for r in lines}
    return found


def models_of(plan: SweepPlan) -> list[str]:
    return [e.id for e in plan.entries if e.model is not None]


def begun(journal: Path) -> list[tuple[str, str]]:
    """(pass, entry) in the order in which the child began them."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    return [(pass_name, entry) for _, pass_name, word, entry in lines if word == "begin"]


def counts(report: RunReport) -> tuple[int, int, int, int, int]:
    whole = report.whole
    return whole.models, whole.latencies, whole.timelines, whole.timelines_failed, whole.timelines_left


class FakeCollector:
    """Records which entries were measured in a file, as a profiler would; loses what it is told to lose."""

    def __init__(
        self, name: str, pass_name: str, *, lose: Callable[[Sequence[str]], bool] | None = None
    ) -> None:
        self.name, self.pass_name, self._lose = name, pass_name, lose

    def unavailable(self) -> str | None:
        return None

    def version(self) -> str | None:
        return None if self.name == "none" else "1.0"

    def clock_control(self) -> str | None:
        return "none"

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        return list(child)

    def environment(self) -> Mapping[str, str]:
        return {}

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> tuple[str, ...]:
        if self.name == "none":
            return ()
        if self._lose is not None and self._lose(entries):
            raise CollectorError(
                f"{self.name}: capture.txt: truncated after 12 bytes, expected a whole report"
            )
        (folder / "capture.txt").write_text("\n".join(entries))
        return ("capture.txt",)

    def capture(self, folder: Path) -> Capture | None:
        return None


def facts(device: str) -> DeviceFacts:
    return DeviceFacts(kind="cpu" if device == "cpu" else "gpu", name="Fake")


def make_machine(*, collector: str = "none", lose: Any = None, **changed: Any) -> Machine:
    """Fakes all over; ``lose``: which captures are lost; any field of Machine."""
    made = Machine(
        child=(sys.executable, "-I", "-S", str(FAKE_CHILD)),
        collector=lambda name, _, pass_name: FakeCollector(
            collector if name == "auto" else name, pass_name, lose=lose
        ),
        facts=facts,
        probe=lambda *_: None,
        versions=lambda *_: {"fake": "1"},
        gpus=lambda: 0,
        present=lambda _: True,
        sampler=lambda *_: nullcontext(),
        judge=lambda *_: "ok",
    )
    return replace(made, **changed)


if __name__ == "__main__":
    report = run_plan(
        read_plan(Path(sys.argv[1])),
        Path(sys.argv[2]),
        RunOptions(devices=("cpu",), chunk_seconds=0.5, limits=Limits(entry_s=5.0), min_free_mb=1),
        machine=make_machine(collector=sys.argv[3]),
    )
    print(report.summary())
    sys.exit(report.exit_code)
