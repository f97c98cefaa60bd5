"""Plans: within the budget, nested, seeded, balanced, models first; what they say; the command."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.cli import run
from gkestimator.core.errors import UsageError
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.profiling.plan import read_plan
from gkestimator.profiling.sweep import Planned, PlanRequest, make_plan, planning
from gkestimator.profiling.sweep.catalogue import CatalogueItem, catalogue
from gkestimator.profiling.sweep.cost import COSTS, counters_s, entry_s, repeats_of

DATA = Path(__file__).parents[1] / "data"
VISION = DATA / "exporters" / "onnxruntime_optimised_vision.onnx"
EXPORTS = DATA / "pattern_exports"


@lru_cache(maxsize=1)
def _items() -> tuple[CatalogueItem, ...]:
    """A tenth of the catalogue, which plans in a tenth of the time."""
    return tuple(islice(catalogue(1000, 0), 0, None, 10))


@pytest.fixture(autouse=True)
def small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here but those that ask for the whole (``benchmarks/plan_speed.py`` does as well)."""
    monkeypatch.setattr(planning, "catalogue", lambda sampled, seed: _items()[seed % 2 :])


@lru_cache(maxsize=16)
def planned(**options: object) -> Planned:
    return make_plan(PlanRequest(**options))  # type: ignore[arg-type]


@pytest.mark.slow
@given(st.floats(0.3, 20), st.floats(0.3, 20))
@settings(max_examples=4, deadline=None)
def test_budgets_are_kept_and_a_shorter_plan_is_the_head_of_a_longer_one(a: float, b: float) -> None:
    short, long = sorted((a, b))
    plans = [make_plan(PlanRequest(minutes=m, dtypes=("fp32",))).plan for m in (short, long)]
    for minutes, plan in zip((short, long), plans, strict=True):
        assert plan.estimated_s is not None and 0 < plan.estimated_s <= 60 * minutes + 1e-3
        assert plan.minutes == minutes
    assert plans[1].entries[: len(plans[0].entries)] == plans[0].entries


@pytest.mark.slow
def test_one_seed_gives_one_plan_and_another_seed_another() -> None:
    one = planned(entries=300, seed=1).plan
    assert make_plan(PlanRequest(entries=300, seed=1)).plan == one
    assert make_plan(PlanRequest(entries=300, seed=2)).plan.entries != one.entries
    assert len({e.id for e in one.entries}) == len(one.entries) == 300


@pytest.mark.slow
def test_families_and_precisions_are_balanced_from_the_start() -> None:
    plan = planned(entries=300, seed=1).plan
    for count in (60, 300):
        kinds = Counter(e.fragment.op_type for e in plan.entries[:count])
        assert len(kinds) > (10 if count == 60 else 25)
        assert 0.15 < kinds["Conv"] / count < 0.5
        precisions = Counter(e.dtype for e in plan.entries[:count])
        assert set(precisions) == {"fp32", "tf32", "fp16", "bf16"}
        assert max(precisions.values()) < count / 2


@pytest.mark.slow
def test_counters_are_wanted_for_about_their_share_of_every_kind() -> None:
    plan = planned(entries=900).plan
    wanted = sum(e.counters for e in plan.entries) / len(plan.entries)
    assert wanted == pytest.approx(0.15, abs=0.02)
    convolutions = [e for e in plan.entries if e.fragment.op_type == "Conv" and e.dtype == "fp16"]
    assert sum(e.counters for e in convolutions) / len(convolutions) == pytest.approx(0.15, abs=0.04)
    assert not any(e.counters for e in planned(entries=50, counters=0.0).plan.entries)
    every = make_plan(PlanRequest(entries=50, counters=1.0)).plan
    assert all(e.counters for e in every.entries)
    assert every.estimated_s > make_plan(PlanRequest(entries=50, counters=0.0)).plan.estimated_s + 20  # type: ignore[operator]


@pytest.mark.slow
def test_operators_of_models_come_first_those_that_take_longest_at_the_head() -> None:
    found = planned(models=(str(VISION),), entries=200, batch_sizes=(4,), dtypes=("fp32",))
    sources = [e.source for e in found.plan.entries]
    of_model = [s for s in sources if s.startswith("model:onnxruntime_optimised_vision")]
    assert 3 <= len(of_model) < 20 and sources[: len(of_model)] == of_model
    only = planned(models=(str(VISION),), catalogue=False, batch_sizes=(4,), dtypes=("fp32",))
    assert [e.id for e in only.plan.entries] == [e.id for e in found.plan.entries[: len(of_model)]]
    assert not found.failures


def test_models_of_several_precisions_are_planned_in_the_precisions_asked_for() -> None:
    both = planned(models=(str(EXPORTS),), catalogue=False, dtypes=("fp32", "fp16")).plan
    assert Counter(e.dtype for e in both.entries).keys() == {"fp32", "fp16"}
    for entry in both.entries:
        floats = {t.dtype.value for t in entry.fragment.tensors if t.dtype.is_floating}
        assert floats <= ({"float"} if entry.dtype == "fp32" else {"float16", "float"}), entry


@pytest.mark.slow
def test_a_known_gpu_decides_precisions_times_and_doubts() -> None:
    old = planned(gpu="P4", entries=100).plan
    assert old.gpu == "P4" and {e.dtype for e in old.entries} <= {"fp32", "fp16"}
    slow = {e.id: e.estimated_s for e in planned(gpu="P4", entries=400, dtypes=("fp32",)).plan.entries}
    fast = {e.id: e.estimated_s for e in planned(gpu="H200", entries=400, dtypes=("fp32",)).plan.entries}
    common = slow.keys() & fast.keys()
    assert len(common) > 100
    assert sum(slow[i] for i in common) > sum(fast[i] for i in common)  # type: ignore[misc]
    with pytest.raises(UsageError, match="bf16 needs bf16 arithmetic, which T4"):
        planned(gpu="T4", dtypes=("bf16",), entries=5)


def test_a_plan_for_the_cpu_is_of_short_calls_in_fp32() -> None:
    found = planned(cpu=True, entries=200)
    assert {e.dtype for e in found.plan.entries} == {"fp32"}
    assert not any(e.counters for e in found.plan.entries) and found.plan.gpu is None
    assert max(e.estimated_s or 0 for e in found.plan.entries) < 12
    assert "this CPU" in found.messages[-1]


@pytest.mark.slow
def test_what_is_said_adds_up() -> None:
    found = planned(minutes=2.0)
    last = found.messages[-1]
    assert f"{len(found.plan.entries):,} entries of" in last and "about 2 min" in last
    assert "an unknown GPU, taken as an A10G" in last
    kinds = next(m for m in found.messages if m.startswith("operators: "))
    assert "Conv" in kinds
    short = planned(models=(str(EXPORTS),), entries=5)
    assert any("the budget ends before" in m for m in short.messages)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runtime": "jax"}, "runtime 'jax': expected one of onnxruntime, "),
        ({"minutes": 0.0}, "minutes: found 0.0"),
        ({"minutes": float("nan")}, "minutes: found nan"),
        ({"entries": 0}, "entries: found 0"),
        ({"counters": 1.5}, "counters: found 1.5"),
        ({"dtypes": ("int8",)}, "dtype: found 'int8'"),
        ({"catalogue": False}, "nothing to plan"),
        ({"cpu": True, "gpu": "T4"}, "gpu: found 'T4'"),
        ({"seed": -1}, "seed: found -1"),
    ],
)
def test_requests_that_cannot_be_are_refused(options: dict, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UsageError, match=said):
        PlanRequest(**options)


@pytest.mark.slow
def test_a_budget_too_small_for_one_entry_says_so() -> None:
    with pytest.raises(UsageError, match="expected enough for one entry"):
        make_plan(PlanRequest(minutes=1e-5))


def test_costs_grow_with_work_and_counters() -> None:
    costs = COSTS["torch"]
    times = entry_s(np.array([1.0, 1e3, 1e5]), np.array([0.0, 0.0, 0.0]), costs)
    assert (np.diff(times) > 0).all()
    assert entry_s(np.array([1.0]), np.array([1e9]), costs)[0] > times[0] + 0.9
    assert entry_s(np.array([1e5]), np.zeros(1), costs, repeats=50)[0] > 3 * times[2]
    assert repeats_of(np.array([1e-6, 1e-3, 1.0]), costs).tolist() == [50, 20, 5]
    assert counters_s(np.array([2]), times[:1], costs) > counters_s(np.array([1]), times[:1], costs)


@pytest.mark.slow
def test_the_command_writes_plans_that_are_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert run(["profile", "plan", "--entries", "40", "--dtype", "fp32,fp16", "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "40 entries of" in err and f"wrote {path}" in err
    plan = read_plan(path)
    assert len(plan.entries) == 40 and plan.estimated_s is not None and plan.minutes is None
    assert (
        run(["profile", "plan", "--entries", "40", "--dtype", "fp32,fp16", "--split", "3", "-o", str(path)])
        == 0
    )
    parts = [read_plan(tmp_path / f"plan-{i}of3.json") for i in (1, 2, 3)]
    assert sorted(e.id for p in parts for e in p.entries) == sorted(e.id for e in plan.entries)
    assert [len(p.entries) for p in parts] == [14, 13, 13]


@pytest.mark.slow
def test_a_plan_that_was_edited_is_read_without_its_ids_and_never_with_wrong_ones(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run(["profile", "plan", "--entries", "3", "-o", str(path)]) == 0
    document = json.loads(path.read_text())
    entry = document["entries"][0]
    entry["fragment"]["tensors"][0]["shape"][0] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="remove the id of an edited entry"):
        read_plan(path)
    del entry["id"]
    path.write_text(json.dumps(document))
    assert read_plan(path).entries[0].id not in {e["id"] for e in document["entries"][1:]}


def test_bad_models_leave_a_plan_of_the_good_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_text("text")
    path = tmp_path / "plan.json"
    common = ["profile", "plan", "--no-catalogue", "-o", str(path)]
    assert run([*common, "--models", str(bad), "--models", str(VISION)]) == 1
    err = capsys.readouterr().err
    assert err.count("gkest: error:") == 1 and "bad.onnx" in err and "Traceback" not in err
    assert read_plan(path).entries
    path.unlink()
    assert run([*common, "--models", str(bad)]) == 2
    assert not path.exists() and "bad.onnx" in capsys.readouterr().err
    assert run([*common, "--models", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize("runtime", sorted(name for name, traits in RUNTIMES.items() if not traits.executor))
def test_a_runtime_that_nothing_profiles_under_says_what_to_do_instead(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(UsageError, match=f"^runtime {runtime}: "):
        PlanRequest(runtime=runtime)
    assert (
        run(["profile", "plan", "--cpu", "--runtime", "onnxruntime", "--entries", "1", "-o", str(path)]) == 0
    )
    capsys.readouterr()
    raw = tmp_path / "raw"
    under = ["--runtime", runtime, "-o", str(tmp_path / "other.json")]
    for arguments in (["plan", *under], ["run", str(path), "--executor", runtime, "-o", str(raw)]):
        assert run(["profile", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert RUNTIMES[runtime].measured_by in error
    assert not raw.exists()


@pytest.mark.slow
def test_a_model_is_not_overwritten_by_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(VISION.read_bytes())
    assert run(["profile", "plan", "--models", str(model), "--entries", "3", "-o", str(model)]) == 2
    assert "is also read" in capsys.readouterr().err and model.read_bytes() == VISION.read_bytes()
