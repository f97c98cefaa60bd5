"""Room for bursts: idle GPUs are used, nothing is lost at the rates themselves, rented GPUs follow the burst."""

from __future__ import annotations

import pytest
from _gkest_cases import V100, problem, row

from gkestimator.core.errors import UsageError
from gkestimator.placement.expected import expect
from gkestimator.placement.gkest.policy import GkestPolicy
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place

ROWS = [row("m", 1, 4.0), row("m", 8, 10.0), row("n", 1, 3.0), row("n", 8, 12.0)]


def test_gpus_that_would_stand_idle_are_used_and_nothing_is_lost() -> None:
    given = problem(ROWS, {"m": (60.0, 50.0), "n": (60.0, 50.0)}, {V100: 6})
    plain, roomy = GkestPolicy().place(given), GkestPolicy(burst=8.0).place(given)
    assert len({p.gpu for p in roomy.placed}) > len({p.gpu for p in plain.placed})
    before, after = expect(given, plain.placed), expect(given, roomy.placed)
    for name in ("m", "n"):
        capacity = [sum(p.capacity_rps for p in x.placed if p.model == name) for x in (plain, roomy)]
        assert capacity[1] > capacity[0]
        assert (after.by_model[name] or 0) >= 0.998 * (before.by_model[name] or 0) > 59
    assert any("planned for bursts of" in n for n in roomy.notes)
    assert roomy.gap_pct == plain.gap_pct


@pytest.mark.slow
def test_a_cluster_without_room_keeps_the_plan_for_the_rates() -> None:
    given = problem(ROWS, {"m": (900.0, 50.0), "n": (800.0, 50.0)}, {V100: 1})
    plain, roomy = GkestPolicy().place(given), GkestPolicy(burst=8.0).place(given)
    assert roomy.placed == plain.placed
    assert "no room for bursts" in roomy.notes[-1]


def test_rented_gpus_are_those_of_the_burst() -> None:
    rent = {V100: (3.0, None)}
    one = problem(ROWS, {"m": (1500.0, 50.0)}, rent=rent)
    three = problem(ROWS, {"m": (4500.0, 50.0)}, rent=rent)
    used = place(make_policy("gkest", burst=3), one).totals.gpus_used
    assert (
        used
        == place(make_policy("gkest"), three).totals.gpus_used
        > place(make_policy("gkest"), one).totals.gpus_used
    )


@pytest.mark.parametrize("burst", [0.5, float("nan"), "much"])
def test_bursts_of_nothing_are_refused(burst: object) -> None:
    with pytest.raises(UsageError, match="burst"):
        make_policy("gkest", burst=burst)
