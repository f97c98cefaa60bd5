"""The way from one plan to the next: the fewest loads, names of their own, nothing on a GPU that has no room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _served_plans import served, write_inputs

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan, read_plan
from gkestimator.serving.moves import plan_moves

POOL = {"T4": ["T4-0", "T4-1", "T4-2", "T4-3"]}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> PlacementPlan:
    folder = write_inputs(tmp_path_factory.mktemp("serving"))
    return read_plan(folder / "plan.json")


def test_at_the_start_everything_is_loaded_as_planned(plan: PlacementPlan) -> None:
    made = served(plan)
    moves = plan_moves((), made, POOL)
    assert moves.target == made.replicas
    assert moves.loads == made.replicas
    assert (moves.late_loads, moves.ends) == ((), ())


def test_the_same_plan_moves_nothing(plan: PlacementPlan) -> None:
    made = served(plan)
    moves = plan_moves(made.replicas, made, POOL)
    assert (moves.loads, moves.late_loads, moves.ends) == ((), (), ())
    assert moves.target == made.replicas


def test_another_batch_size_is_a_setting_not_a_load(plan: PlacementPlan) -> None:
    first = plan.gpus[0]
    larger = tuple(replace(r, batch_size=8) for r in first.replicas)
    later = replace(plan, gpus=(replace(first, replicas=larger), *plan.gpus[1:]))
    moves = plan_moves(served(plan).replicas, served(later), POOL)
    assert moves.loads == ()
    assert moves.ends == ()
    assert [r.cap for r in moves.target if r.gpu == first.id] == [8] * len(larger)


def test_a_gpu_more_and_a_gpu_less(plan: PlacementPlan) -> None:
    first = plan.gpus[0]
    again = tuple(replace(r, id=f"{r.model}-9", partition=None) for r in first.replicas)
    more = replace(plan, gpus=(*plan.gpus, replace(first, id="T4-3", replicas=again)))
    moves = plan_moves(served(plan).replicas, served(more), POOL)
    assert [r.name for r in moves.loads] == [r.id for r in again]
    assert moves.ends == ()
    back = plan_moves(moves.target, served(plan), POOL)
    assert back.loads == ()
    assert len(back.ends) == len(again)


def test_a_name_that_still_runs_is_not_given_twice(plan: PlacementPlan) -> None:
    made = served(plan)
    first = plan.gpus[0]
    # The same ids, of another runtime: nothing can go on as it.
    others = tuple(replace(r, dtype="fp32") for r in first.replicas)
    later = replace(plan, gpus=(replace(first, replicas=others),))
    planned = replace(
        made,
        plan=later,
        replicas=tuple(replace(own, asked=asked) for own, asked in zip(made.replicas, others, strict=False)),
    )
    moves = plan_moves(made.replicas, planned, POOL)
    assert {r.name for r in moves.loads} == {f"{r.id}.2" for r in others}
    assert len(moves.ends) == len(made.replicas)


def test_a_full_gpu_is_emptied_before_it_is_loaded(plan: PlacementPlan) -> None:
    gpu = plan.gpus[0]
    large = replace(gpu.replicas[0], mreq_pct=60.0, partition=None)
    other = replace(gpu.replicas[1], mreq_pct=60.0, partition=None)
    one = {"T4": [gpu.id]}
    before = replace(plan, gpus=(replace(gpu, replicas=(large,)),))
    after = replace(plan, gpus=(replace(gpu, replicas=(other,)),))
    moves = plan_moves(served(before).replicas, served(after), one)
    assert moves.loads == ()
    assert [r.model for r in moves.late_loads] == [other.model]
    assert moves.ends == (large.id,)


def test_more_gpus_than_there_are(plan: PlacementPlan) -> None:
    with pytest.raises(UsageError, match="expected no more GPUs of a type than there are"):
        plan_moves((), served(plan), {"T4": ["T4-0"][: len(plan.gpus) - 1]})
