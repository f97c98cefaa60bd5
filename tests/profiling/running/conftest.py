"""A machine without profilers or GPUs for the runner's tests, and plans of small operators."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gkestimator.profiling.captures import Capture
from gkestimator.profiling.collectors.base import CollectorError
from gkestimator.profiling.plan import SweepPlan, plan_of
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.running import Machine

from gkestimator.dtypes import DType
from gkestimator.fragments import Fragment, FragmentNode, FragmentTensor

FAKE_CHILD = Path(__file__).with_name("fake_child.py")


def relu(size: int) -> Fragment:
    return Fragment(
        opsets={"": 17},
        nodes=(FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("x",), outputs=("y",)),),
        tensors=(FragmentTensor(name="x", dtype=DType.FLOAT, shape=(1, size)),),
        outputs=("y",),
    )


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


@pytest.fixture
def machine() -> Callable[..., Machine]:
    """``machine(collector="none", lose=...)`` and any field of Machine."""

    def make(*, collector: str = "none", lose: Any = None, **changed: Any) -> Machine:
        made = Machine(
            child=(sys.executable, "-I", "-S", str(FAKE_CHILD)),
            collector=lambda name, _, pass_name: FakeCollector(
                collector if name == "auto" else name, pass_name, lose=lose
            ),
            facts=facts,
            versions=lambda *_: {"fake": "1"},
            gpus=lambda: 0,
            present=lambda _: True,
            sampler=lambda *_: nullcontext(),
            judge=lambda *_: "ok",
        )
        return replace(made, **changed)

    return make


@pytest.fixture
def plan() -> Callable[..., SweepPlan]:
    """``plan(n)``: n operators of a tenth of a second each; ``counters``: numbers of those that want counters."""

    def make(count: int, *, counters: Sequence[int] = (), seconds: float | None = 0.1) -> SweepPlan:
        found = plan_of([(relu(i + 1), "fp32", "test") for i in range(count)], runtime="onnxruntime")
        entries = tuple(
            replace(e, counters=i in counters, estimated_s=seconds) for i, e in enumerate(found.entries)
        )
        return replace(found, entries=entries)

    return make


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Tell the fake child how to behave; returns the journal of what it measured."""

    def tell(behaviour: Mapping[str, str] | None = None, **more: Any) -> Path:
        journal = tmp_path / "journal.txt"
        told = {"behaviour": dict(behaviour or {}), "journal": str(journal), **more}
        monkeypatch.setenv("GKEST_FAKE", json.dumps(told))
        return journal

    return tell
