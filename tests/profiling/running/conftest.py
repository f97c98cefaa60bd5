"""A machine without profilers or GPUs for the runner's tests, and plans of small operators."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gkestimator.dtypes import DType
from gkestimator.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.plan import SweepPlan, plan_of


def relu(size: int) -> Fragment:
    return Fragment(
        opsets={"": 17},
        nodes=(FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("x",), outputs=("y",)),),
        tensors=(FragmentTensor(name="x", dtype=DType.FLOAT, shape=(1, size)),),
        outputs=("y",),
    )


def _load(name: str) -> ModuleType:
    """A module beside this one: tests are not packages."""
    spec = importlib.util.spec_from_file_location(f"gkest_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FAKES = _load("fakes")


@pytest.fixture
def fakes() -> ModuleType:
    """The module ``fakes.py``."""
    return FAKES


@pytest.fixture
def machine() -> Callable[..., Any]:
    """``machine(collector="none", lose=...)`` and any field of Machine."""
    made: Callable[..., Any] = FAKES.make_machine
    return made


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
