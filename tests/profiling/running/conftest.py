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

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import MODEL_PREFIX, Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.plan import ModelPoint, PlanEntry, SweepPlan, entry_id, plan_of


def relu(size: int) -> Fragment:
    return Fragment(
        opsets={"": 17},
        nodes=(FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("x",), outputs=("y",)),),
        tensors=(FragmentTensor(name="x", dtype=DType.FLOAT, shape=(1, size)),),
        outputs=("y",),
    )


def whole_model(number: int) -> PlanEntry:
    """Two operators that are a model."""
    fragment = Fragment(
        opsets={"": 17},
        nodes=(
            FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("x",), outputs=("y",)),
            FragmentNode(op_type="MatMul", domain="", attributes={}, inputs=("y", "w"), outputs=("z",)),
        ),
        tensors=(
            FragmentTensor(name="x", dtype=DType.FLOAT, shape=(number + 1, 8)),
            FragmentTensor(name="w", dtype=DType.FLOAT, shape=(8, 4), role="weight"),
        ),
        outputs=("z",),
        pattern=f"{MODEL_PREFIX}m{number}",
    )
    return PlanEntry(
        id=entry_id(fragment, "fp32"), fragment=fragment, dtype="fp32", source="test",
        model=ModelPoint(name=f"m{number}", batch_size=number + 1),
    )  # fmt: skip


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
    """``plan(n)``: n operators of a tenth of a second each; ``counters``: numbers of those that want counters;
    ``models``: so many whole models behind them, of as many seconds each."""

    def make(
        count: int, *, counters: Sequence[int] = (), seconds: float | None = 0.1, models: int = 0
    ) -> SweepPlan:
        found = plan_of([(relu(i + 1), "fp32", "test") for i in range(count)], runtime="onnxruntime")
        operators = tuple(
            replace(e, counters=i in counters, estimated_s=seconds) for i, e in enumerate(found.entries)
        )
        whole = tuple(replace(whole_model(i), estimated_s=seconds) for i in range(models))
        return replace(found, entries=operators + whole)

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
