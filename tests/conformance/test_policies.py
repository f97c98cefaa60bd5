"""What every placement policy must do; iterates the table of policies and one of a third party, found by its entry point."""

from __future__ import annotations

import hashlib
import inspect
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from placement_cases import GPUS, KINDS, Case, case, check_plan, rows_of

from gkestimator.core.errors import UsageError
from gkestimator.documents import plan_json, read_plan
from gkestimator.placement.policy import Placed, Placement, Policy, PolicyError
from gkestimator.placement.registry import (
    POLICIES,
    make_policy,
    policy_class,
    policy_names,
    policy_summaries,
)
from gkestimator.placement.run import place
from gkestimator.tables.candidate import CREQ_COLUMNS

NAMES = (*POLICIES, "first-fit")
pytestmark = pytest.mark.usefixtures("first_fit")
# An exhaustive search is for tiny cases and may refuse one; every other policy answers every case.
EXHAUSTIVE = {"gpulet-ideal"}


def case_for(name: str, seed: int, kind: str) -> Case:
    return case(seed, kind, tiny=name in EXHAUSTIVE)


def policy_for(name: str) -> Policy:
    return make_policy(name)


def objective_for(policy: Policy, instance: Case) -> str | None:
    if "elastic" in instance.cluster and "cost" not in policy.objectives:
        return "goodput"
    return None


def answer(name: str, instance: Case, *, seed: int = 0) -> Any:
    policy = policy_for(name)
    problem = instance.problem(policy.creq, objective_for(policy, instance), seed)
    try:
        return place(policy, problem)
    except UsageError:
        if name in EXHAUSTIVE:
            pytest.skip(f"{name} refuses a case of this size")
        raise


def check(name: str, plan: Any, instance: Case) -> dict[str, float]:
    policy = policy_class(name)
    return check_plan(
        plan, instance, packs_by_creq=policy.packs_by_creq, creq_column=CREQ_COLUMNS[policy.creq]
    )


def test_the_third_party_is_found_by_its_entry_point_and_not_loaded_for_its_name() -> None:
    assert "first-fit" in policy_names() and "first-fit" in policy_summaries()
    assert "first_fit" not in sys.modules
    assert policy_class("first-fit").__module__ == "first_fit"


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_says_what_it_is(name: str, tmp_path: Path) -> None:
    found = policy_class(name)
    assert found.name == name and found.summary.strip() and "\n" not in found.summary
    assert name == "first-fit" or policy_summaries()[name] == found.summary
    assert found.creq in CREQ_COLUMNS and set(found.objectives) <= {"goodput", "cost"} and found.objectives
    with pytest.raises(UsageError, match="has no option sideways"):
        make_policy(name, sideways=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_answers_stand(name: str, kind: str, tmp_path: Path) -> None:
    answered = 0
    for seed in range(5):
        instance = case_for(name, seed, kind)
        try:
            plan = answer(name, instance)
        except pytest.skip.Exception:
            continue
        answered += 1
        goodput = check(name, plan, instance)
        (tmp_path / "plan.json").write_text(plan_json(plan))
        assert read_plan(tmp_path / "plan.json") == plan
        if kind == "elastic" and plan.objective == "cost":
            assert not plan.unserved, "rented without limit, with four times the slowest latency to spare"
        if kind == "spare":
            assert all(rate > 0 for model, rate in goodput.items() if feasible(model, instance))
    assert answered >= 3


@pytest.mark.parametrize("creq", CREQ_COLUMNS)
@pytest.mark.parametrize("name", NAMES)
def test_every_measure_of_compute_is_packed_by_on_request(name: str, creq: str) -> None:
    instance = case_for(name, 6, "homogeneous")
    policy = policy_for(name)
    plan = place(policy, instance.problem(creq))
    check_plan(plan, instance, packs_by_creq=policy.packs_by_creq, creq_column=CREQ_COLUMNS[creq])
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            (row,) = (
                r for r in instance.rows
                if (r.model, r.gpu, r.batch_size, r.sm_share_pct) == (replica.model, gpu.type, replica.batch_size, replica.sm_share_pct)
            )  # fmt: skip
            assert replica.creq_pct == getattr(row, CREQ_COLUMNS[creq])


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_table_is_served_or_the_missing_column_named(name: str) -> None:
    """Whole GPUs alone, and nothing but time, Creq and memory, as in table A.1."""
    instance = case_for(name, 8, "homogeneous")
    nulls: dict[str, Any] = dict.fromkeys(
        ("dram_util_mean_pct", "l2_util_mean_pct", "power_w", "input_bytes", "output_bytes", "dram_bytes", "flops", "kernels",
         "sm_util_max_pct")
    )  # fmt: skip
    plain = replace(instance, rows=tuple(replace(r, **nulls) for r in instance.rows if r.sm_share_pct == 100))
    policy = policy_for(name)
    try:
        plan = place(policy, plain.problem(policy.creq))
    except UsageError as e:
        assert name in str(e) and any(column in str(e) for column in nulls)
    else:
        assert sum(check(name, plan, plain).values()) > 0


def feasible(model: str, instance: Case) -> bool:
    """Whether half of the objective suffices for some batch on all SMs, which every way of sharing in time can use."""
    slo = next(m["slo_ms"] for m in instance.workload["models"] if m["name"] == model)
    return any(
        r.model == model and r.sm_share_pct == 100 and (r.latency_ms or 0.0) <= slo / 2.5
        and max(r.mreq_pct or 0.0, r.occupancy_max_pct or 0.0) <= 100
        for r in instance.rows
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_input_gives_the_same_plan_in_any_order_of_its_rows(name: str) -> None:
    for kind in ("homogeneous", "heterogeneous", "elastic"):
        instance = case_for(name, 1, kind)
        first = answer(name, instance, seed=7)
        shuffled = list(instance.rows)
        random.Random(5).shuffle(shuffled)
        other = answer(name, replace(instance, rows=tuple(shuffled)), seed=7)
        assert plan_json(other) == plan_json(first)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_models_does_not_decide_what_is_served(name: str) -> None:
    for kind in ("homogeneous", "heterogeneous", "elastic"):
        for seed in (2, 3):
            instance = case_for(name, seed, kind)
            models = instance.workload["models"]
            first = answer(name, instance)
            other = answer(name, replace(instance, workload={"models": models[::-1]}))
            assert other.totals.goodput_rps == pytest.approx(first.totals.goodput_rps, rel=1e-6)
            assert other.totals.cost_per_hour == pytest.approx(first.totals.cost_per_hour, rel=1e-6)


SCRIPT = """
import hashlib
from placement_cases import case
from gkestimator.documents import plan_json
from gkestimator.placement.registry import make_policy, policy_names
from gkestimator.placement.run import place
for name in policy_names():
    for kind in ("homogeneous", "elastic"):
        policy = make_policy(name)
        instance = case(4, kind, tiny=name == "gpulet-ideal")
        elastic = "elastic" in instance.cluster and "cost" not in policy.objectives
        text = plan_json(place(policy, instance.problem(policy.creq, "goodput" if elastic else None)))
        print(name, kind, hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.slow
def test_plans_do_not_hang_on_the_order_of_sets(first_fit: Path) -> None:
    outputs = []
    modules = os.pathsep.join([str(first_fit), str(Path(__file__).parent)])
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT],
            capture_output=True, text=True, check=False, timeout=120,
            env={"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1", "PYTHONPATH": modules},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] and outputs[0].count("\n") == 2 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_models_are_no_replicas(name: str) -> None:
    policy = policy_for(name)
    for kind in ("homogeneous", "elastic"):
        instance = case_for(name, 0, kind)
        problem = instance.problem(policy.creq, objective_for(policy, instance))
        assert policy.place(problem.with_models(())).placed == ()


@pytest.mark.parametrize("kind", ["homogeneous", "elastic"])
@pytest.mark.parametrize("what", ["slo", "memory"])
@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_served_is_answered_and_the_rest_is_served(name: str, what: str, kind: str) -> None:
    rng = random.Random(1)
    rows = [*rows_of(rng, "fine", GPUS[1:2]), *rows_of(rng, "hopeless", GPUS[1:2])]
    if what == "memory":
        rows = [
            replace(r, mreq_pct=130.0, mreq_bytes=22_000_000_000) if r.model == "hopeless" else r
            for r in rows
        ]
    slo = 0.001 if what == "slo" else 500.0
    gpus = {"gpus": [{"type": GPUS[1], "count": 2}]}
    rented = {"elastic": [{"type": GPUS[1], "price_per_hour": 2.5}]}
    instance = Case(
        rows=tuple(rows),
        workload={
            "models": [
                {"name": "fine", "rate_rps": 5.0, "slo_ms": 500.0},
                {"name": "hopeless", "rate_rps": 5.0, "slo_ms": slo},
            ]
        },
        cluster=gpus if kind == "homogeneous" else rented,
    )
    plan = answer(name, instance)
    goodput = check(name, plan, instance)
    assert goodput == {"fine": 5.0, "hopeless": 0.0}
    (unserved,) = plan.unserved
    assert unserved.model == "hopeless" and unserved.rate_rps == 5.0
    assert ("0.001" in unserved.reason) if what == "slo" else ("memory" in unserved.reason)


@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_is_null_is_named(name: str) -> None:
    policy = policy_for(name)
    assert policy.needs, "a policy that needs nothing of the table packs nothing"
    instance = case_for(name, 3, "homogeneous")
    for need in policy.needs:
        column = {"creq": CREQ_COLUMNS[policy.creq], "memory": "mreq_bytes"}.get(need, need)
        also = {"mreq_pct": None, "reserved_bytes": None} if need == "memory" else {}
        nulls: dict[str, Any] = {column: None, **also}
        blind = replace(instance, rows=tuple(replace(r, **nulls) for r in instance.rows))
        if need in policy.spares:
            continue
        with pytest.raises(UsageError, match=rf"(?s){name}.*{column}.*null"):
            place(policy, blind.problem(policy.creq))


@pytest.mark.parametrize("name", [n for n in POLICIES if policy_class(n).spares])
def test_a_column_that_a_policy_spares_is_not_checked_and_stays_null(name: str) -> None:
    policy = policy_for(name)
    assert policy.spares == ("memory",)
    instance = case_for(name, 3, "homogeneous")
    nulls: dict[str, Any] = {"mreq_bytes": None, "mreq_pct": None, "reserved_bytes": None}
    blind = replace(instance, rows=tuple(replace(r, **nulls) for r in instance.rows))
    plan = place(policy, blind.problem(policy.creq))
    assert plan.totals.goodput_rps > 0
    names = {m.name for m in plan.workload.models}
    (note,) = (
        n for n in plan.notes if n.startswith("mreq_bytes (or reserved_bytes) is null in every row of ")
    )
    assert note.endswith("whether they fit into a GPU's memory is not checked") and min(names) in note
    for gpu in plan.gpus:
        assert gpu.muti_pct is None
        assert {(r.mreq_bytes, r.mreq_pct) for r in gpu.replicas} == {(None, None)}


@pytest.mark.parametrize("name", [n for n in POLICIES if policy_class(n).spares])
def test_where_a_model_has_the_column_in_some_rows_the_others_are_left_out(name: str) -> None:
    policy = policy_for(name)
    instance = case_for(name, 3, "homogeneous")
    nulls: dict[str, Any] = {"mreq_bytes": None, "mreq_pct": None, "reserved_bytes": None}
    model = instance.rows[0].model
    smallest = min(r.batch_size or 1 for r in instance.rows if r.model == model)
    rows = [
        replace(r, **nulls) if r.model == model and r.batch_size == smallest else r for r in instance.rows
    ]
    plan = place(policy, replace(instance, rows=tuple(rows)).problem(policy.creq))
    assert not any("not checked" in note for note in plan.notes)
    assert any(note.startswith(f"{model}: ") and "rows left out" in note for note in plan.notes)
    assert all(r.mreq_pct is not None for gpu in plan.gpus for r in gpu.replicas)


def flags_of(name: str) -> list[str]:
    parameters = inspect.signature(policy_class(name)).parameters
    return [o for o in policy_class(name).options if isinstance(parameters[o].default, bool)]


@pytest.mark.parametrize(("name", "option"), [(n, o) for n in POLICIES for o in flags_of(n)])
def test_an_option_that_is_true_or_false_is_nothing_else(name: str, option: str) -> None:
    for value in ("maybe", 1):
        with pytest.raises(UsageError, match=f"{name}: option {option.replace('_', '-')}: found {value!r}"):
            make_policy(name, **{option: value})


def test_a_policy_that_does_not_minimise_cost_says_so() -> None:
    for name in NAMES:
        policy = policy_for(name)
        if "cost" not in policy.objectives:
            with pytest.raises(UsageError, match=f"{name} cannot minimise cost"):
                place(policy, case(0, "elastic").problem(policy.creq, "cost"))


class Wrong(Policy):
    """Answers whatever it was given."""

    name = "wrong"
    summary = "Wrong."

    def __init__(self, placed: Any) -> None:
        self._placed = placed

    def place(self, problem: Any) -> Placement:
        return Placement(placed=tuple(self._placed(problem)))


def _candidate(problem: Any, share: float = 100.0, batch: int = 1) -> Any:
    return next(c for c in problem.models[0].candidates if c.sm_share_pct == share and c.batch_size == batch)


WRONG = {
    "memory at": lambda p: [Placed(gpu=p.gpus[0], model="m0", candidate=_candidate(p)) for _ in range(80)],
    "above its SLO": lambda p: [
        Placed(gpu=p.gpus[0], model="m0", candidate=_candidate(p), partition="a", duty_cycle_ms=1e6)
    ],
    "is not a GPU of the cluster": lambda p: [
        Placed(gpu=p.rented(p.types[0], 99), model="m0", candidate=_candidate(p))
    ],
    "not in the table": lambda p: [
        Placed(gpu=p.gpus[0], model="m0", candidate=replace(_candidate(p), memory_pct=0.0))
    ],
    "no single duty cycle": lambda p: [
        Placed(gpu=p.gpus[0], model="m0", candidate=_candidate(p), partition="a") for _ in range(2)
    ],
    "of a cycle of": lambda p: [
        Placed(gpu=p.gpus[0], model="m0", candidate=_candidate(p), partition="a", duty_cycle_ms=1e-3)
    ],
    "SM shares sum to": lambda p: [
        Placed(gpu=p.gpus[0], model="m0", candidate=_candidate(p, 80.0)) for _ in range(2)
    ],
}


@pytest.mark.parametrize("problem", WRONG)
def test_an_answer_that_does_not_stand_is_refused(problem: str) -> None:
    rng = random.Random(2)
    instance = Case(
        rows=tuple(rows_of(rng, "m0", GPUS[:1])),
        workload={"models": [{"name": "m0", "rate_rps": 5.0, "slo_ms": 1000.0}]},
        cluster={"gpus": [{"type": GPUS[0], "count": 1}]},
    )
    with pytest.raises(PolicyError, match=f"policy wrong: .*{problem}"):
        place(Wrong(WRONG[problem]), instance.problem("sm-util-mean"))


def test_cases_differ_and_repeat() -> None:
    texts = {
        hashlib.sha256(repr((case(s, k).rows, case(s, k).workload)).encode()).hexdigest()
        for k in KINDS
        for s in range(5)
    }
    assert len(texts) == 5 * len(KINDS)
    assert case(3, "elastic") == case(3, "elastic")
