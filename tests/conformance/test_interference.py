"""What every interference model must do; iterates the table of models, with and without coefficients."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.documents.interference import FORMS, ContentionWeights, FittedWeights
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.interference import gpulet_law as gpulet_interference
from gkestimator.interference import igniter_coefficients
from gkestimator.interference import igniter_law as igniter_model
from gkestimator.interference.base import FEATURES, TERMS, Interference, alone_candidate
from gkestimator.interference.contention import Contention
from gkestimator.interference.fitted import FittedLaw
from gkestimator.interference.gpulet import Gpulet
from gkestimator.interference.igniter import Igniter
from gkestimator.interference.laws import LEAST_CLOCK, memory_slowdown, slowdown
from gkestimator.interference.registry import MODELS, law_code, make_interference
from gkestimator.placement.contention import slowdowns
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu
from gkestimator.simulation.options import OPTION_WORDS
from gkestimator.tables import Requirement

SPEC: GpuSpec = gpu_catalogue().spec("V100-SXM2-16GB")
IGNITER = igniter_coefficients.IgniterCoefficients(
    source="test",
    gpus={
        SPEC.name: {
            "idle_power_w": 50.0,
            "clock_mhz_per_w": -1.0,
            "schedule_ms_per_model": 0.005,
            "schedule_offset_ms": -0.008,
        }
    },
    models={
        ("m0", SPEC.name): igniter_coefficients.ModelCoefficients(
            schedule_ms_per_kernel=0.002, cache_slowdown=0.3
        )
    },
)
GPULET = gpulet_interference.GpuletCoefficients(
    constant=0.8, l2_own=0.1, l2_other=0.7, dram_own=0.0, dram_other=0.4
)
WEIGHTS = ContentionWeights(
    sm_overlap=0.5, sm_excess=1.0, dram_overlap=0.2, dram_excess=0.9, l2_overlap=0.0, l2_excess=0.3
)
# All but the law that has none of its own.
UNFITTED = [name for name in MODELS if name != "fitted"]


def fitted(form: str, *, logarithm: bool = False) -> FittedLaw:
    constant = 0.05 if logarithm else 1.05
    weights = FittedWeights(
        form=form, logarithm=logarithm, constant=constant, sm=0.3, dram=0.2, l2=0.1, sm_more=0.4, dram_more=0.1,
        l2_more=0.2,
    )  # fmt: skip
    return FittedLaw(weights)


# Every model of the table, and those that take coefficients with some.
CASES: dict[str, Interference] = {
    **{name: make_interference(name, gpus=[SPEC]) for name in UNFITTED},
    **{f"fitted, {form}": fitted(form) for form in FORMS},
    **{f"fitted, logarithm, {form}": fitted(form, logarithm=True) for form in FORMS},
    "gpulet, coefficients": Gpulet(GPULET),
    "igniter, coefficients": Igniter(IGNITER, [SPEC]),
    "contention, weights": Contention(WEIGHTS),
}
PLAIN = getattr(slowdown, "py_func", slowdown)


def row(number: int, draw: random.Random) -> Requirement:
    """A row of model ``m<number>`` with every column that a model may ask for."""
    latency = draw.uniform(1.0, 80.0)
    batch = draw.choice((1, 4, 16, 64))
    share = draw.choice((20.0, 50.0, 100.0, 100.0))
    return Requirement(
        model=f"m{number}",
        gpu=SPEC.name,
        runtime="torch",
        dtype="fp32",
        batch_size=batch,
        sm_share_pct=share,
        latency_ms=latency,
        throughput_rps=1e3 * batch / latency,
        sm_util_mean_pct=draw.uniform(0.0, share),
        dram_util_mean_pct=draw.uniform(0.0, 100.0),
        l2_util_mean_pct=draw.uniform(0.0, 100.0),
        power_w=draw.uniform(60.0, 280.0),
        kernels=draw.randrange(50, 800),
        source="measured",
        occupancy_source="measured",
        memory_source=None,
    )


def rows(seed: int, count: int) -> list[Requirement]:
    draw = random.Random(seed)
    return [row(i, draw) for i in range(count)]


def factor(
    model: Interference, own: Requirement, others: Sequence[Requirement], law: object = slowdown
) -> float:
    total = np.zeros(FEATURES)
    for other in others:
        total = total + np.array(model.features(other))
    found = law(  # type: ignore[operator]
        model.code, np.array(model.features(own)), total, len(others), np.array(model.terms(SPEC))
    )
    assert isinstance(found, float)
    return found


def test_each_name_has_a_law_of_its_own() -> None:
    assert list(OPTION_WORDS["interference"]) == list(MODELS)
    assert len({law_code(name) for name in MODELS}) == len(MODELS)
    with pytest.raises(UsageError, match="interference fitted has no coefficients of its own"):
        make_interference("fitted", gpus=[SPEC])
    for name in UNFITTED:
        model = make_interference(name, gpus=[SPEC])
        assert (model.name, model.code) == (name, law_code(name))


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_as_many_as_the_engine_keeps(case: str) -> None:
    for r in rows(1, 5):
        assert len(CASES[case].features(r)) == FEATURES
        assert all(math.isfinite(v) for v in CASES[case].features(r))
    assert len(CASES[case].terms(SPEC)) == TERMS
    assert all(math.isfinite(v) for v in CASES[case].terms(SPEC))


@pytest.mark.parametrize("case", CASES)
def test_alone_a_batch_is_not_slowed(case: str) -> None:
    assert [factor(CASES[case], r, []) for r in rows(2, 30)] == [1.0] * 30


@pytest.mark.parametrize("case", CASES)
def test_a_neighbour_more_never_speeds_a_batch_up(case: str) -> None:
    risen = 0
    for seed in range(40):
        own, *others = rows(seed, 8)
        found = [factor(CASES[case], own, others[:n]) for n in range(8)]
        assert all(1.0 <= a <= b < math.inf for a, b in itertools.pairwise(found))
        risen += found[-1] > found[0]
    assert risen == (0 if case == "none" else 40)


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_the_neighbours_does_not_matter(case: str) -> None:
    own, *others = rows(3, 5)
    found = [factor(CASES[case], own, order) for order in itertools.permutations(others)]
    assert found == pytest.approx([found[0]] * len(found), rel=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_compiled_it_gives_the_same_numbers(case: str) -> None:
    for seed in range(20):
        own, *others = rows(seed, 1 + seed % 5)
        assert factor(CASES[case], own, others) == factor(CASES[case], own, others, PLAIN)


@pytest.mark.parametrize("case", CASES)
def test_features_do_not_depend_on_what_was_asked_before(case: str) -> None:
    first, second = rows(4, 2)
    before = CASES[case].features(first)
    CASES[case].features(second)
    assert CASES[case].features(first) == before


@pytest.mark.parametrize("name", [n for n in UNFITTED if n != "none"])
def test_a_column_that_is_null_is_named(name: str) -> None:
    model = make_interference(name, gpus=[SPEC])
    assert model.needs
    for column in model.needs:
        with pytest.raises(UsageError, match=f"interference {name} needs {column}, .*m0 on {SPEC.name}"):
            model.features(replace(rows(5, 1)[0], **{column: None}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpulet", "igniter"])
@pytest.mark.parametrize("latency", [None, 0.0])
def test_a_row_without_a_latency_is_named(name: str, latency: float | None) -> None:
    with pytest.raises(UsageError, match=r"latency_ms is (null|0) for m0 on .*expected a number above 0"):
        make_interference(name, gpus=[SPEC]).features(replace(rows(5, 1)[0], latency_ms=latency))


def test_between_a_batch_size_whose_column_is_known_and_one_where_it_is_not_it_is_not() -> None:
    model = make_interference("contention")
    known, other = (replace(r, sm_util_mean_pct=10.0, l2_util_mean_pct=10.0) for r in rows(6, 2))
    known, other = (replace(r, dram_util_mean_pct=95.0) for r in (known, other))
    unknown = replace(known, dram_util_mean_pct=None)
    between = (np.array(model.features(known)) + np.array(model.features(unknown))) / 2
    beside = np.array(model.features(other))
    assert slowdown(model.code, np.array(model.features(known)), beside, 1, np.zeros(TERMS)) > 1.8
    assert slowdown(model.code, between, beside, 1, np.zeros(TERMS)) == pytest.approx(1.01)  # L2 alone


# The policies' own formulas, on pairs: what a plan was made by and what it is judged by are one thing.


@pytest.mark.parametrize("coefficients", [gpulet_interference.DERIVED, GPULET])
def test_gpulet_is_the_policys_formula(coefficients: gpulet_interference.GpuletCoefficients) -> None:
    model = Gpulet(coefficients)
    for seed in range(50):
        a, b = rows(seed, 2)
        mine, its = (coefficients.pressure([alone_candidate(r)]) for r in (a, b))
        assert factor(model, a, [b]) == pytest.approx(coefficients.slowdown(mine, its), rel=1e-12)


@pytest.mark.parametrize("coefficients", [None, IGNITER])
def test_igniter_is_the_policys_formula(
    coefficients: igniter_coefficients.IgniterCoefficients | None,
) -> None:
    model = Igniter(coefficients, [SPEC])
    gpu = igniter_coefficients.terms_of(SPEC, coefficients)
    slowed_by_the_clock = 0
    for seed in range(50):
        found = rows(seed, 3)
        loads = [
            igniter_coefficients.load_of(r.model, alone_candidate(r), gpu, coefficients, beside=True)
            for r in found
        ]
        for count in (2, 3):  # the policy's model has no limit of two
            expected = igniter_model.gpu_ms(gpu, loads[:count], 0) / igniter_model.gpu_ms(gpu, loads[:1], 0)
            assert factor(model, found[0], found[1:count]) == pytest.approx(expected, rel=1e-12)
            slowed_by_the_clock += igniter_model.clock_mhz(gpu, loads[:count]) < gpu.clock_mhz
    assert (slowed_by_the_clock > 0) == (coefficients is not None)


def test_a_clock_that_would_fall_to_nothing_still_ends_a_batch() -> None:
    steep = replace(IGNITER, gpus={SPEC.name: {**IGNITER.gpus[SPEC.name], "clock_mhz_per_w": -100.0}})
    own, *others = (replace(r, power_w=280.0) for r in rows(7, 4))
    found = [factor(Igniter(steep, [SPEC]), own, others[:n]) for n in range(4)]
    assert found[0] == 1.0
    assert all(1 / LEAST_CLOCK <= f < 2 / LEAST_CLOCK for f in found[1:])
    terms = igniter_coefficients.terms_of(SPEC, steep)
    loads = [
        igniter_coefficients.load_of(r.model, alone_candidate(r), terms, steep, beside=True)
        for r in (own, others[0])
    ]
    assert igniter_model.gpu_ms(terms, loads, 0) == math.inf  # the policy's formula: never


def test_contention_is_the_placements_formula_for_neighbours_that_always_run() -> None:
    model = make_interference("contention")
    slowed = 0
    for seed in range(80):
        pair = rows(seed, 2)
        pair[1] = pair[1] if seed % 3 else replace(pair[1], dram_util_mean_pct=None)
        pair[0] = pair[0] if seed % 4 else replace(pair[0], l2_util_mean_pct=None)
        placed = [
            Placed(gpu=Gpu(id=f"{SPEC.name}-0", type=SPEC.name), model=r.model, candidate=alone_candidate(r))
            for r in pair
        ]
        expected = slowdowns(placed, [p.capacity_rps for p in placed])
        for i, j in ((0, 1), (1, 0)):
            assert factor(model, pair[i], [pair[j]]) == pytest.approx(expected[i], rel=1e-3)
            slowed += (expected[i] or 0.0) > 1
    assert slowed > 100


def test_confined_neighbours_slow_each_other_by_the_memory_that_they_share() -> None:
    """Two batches that use half of the DRAM bandwidth each: one in four meets the other there."""
    model = make_interference("contention")
    first, second = (
        replace(r, sm_share_pct=50.0, sm_util_mean_pct=50.0, dram_util_mean_pct=50.0, l2_util_mean_pct=None)
        for r in rows(8, 2)
    )
    assert factor(model, first, [second]) == pytest.approx(1.25)
    # What both drive without a pause is shared in halves, what three drive in thirds.
    first, second = (replace(r, dram_util_mean_pct=100.0) for r in (first, second))
    assert factor(model, first, [second]) == pytest.approx(2.0)
    assert factor(model, first, [second, second]) == pytest.approx(3.0)
    assert factor(model, replace(first, dram_util_mean_pct=20.0), [second, second]) == pytest.approx(1.4)
    assert factor(model, replace(first, dram_util_mean_pct=0.0), [second]) == 1.0


def exact_slowdowns(demands: Sequence[float]) -> list[float]:
    """Mean-value analysis of a closed network: each batch computes and comes to one memory, its own part of the time."""
    waiting: dict[frozenset[int], dict[int, float]] = {frozenset(): {}}
    slow: dict[int, float] = {}
    everyone = range(len(demands))
    for size in range(1, len(demands) + 1):
        for group in map(frozenset, itertools.combinations(everyone, size)):
            slow = {}
            for i in group:
                found_there = sum(waiting[group - {i}].values())
                slow[i] = (1 - demands[i]) + demands[i] * (1 + found_there)
            waiting[group] = {
                i: demands[i] * (1 + sum(waiting[group - {i}].values())) / slow[i] for i in group
            }
    return [slow[i] for i in everyone]


def test_the_law_of_shared_memory_is_the_exact_one_for_two_and_near_it_for_three() -> None:
    draw = random.Random(5)
    for _ in range(200):
        demands = [draw.random() for _ in range(3)]
        a, b, _ = demands
        assert exact_slowdowns([a, b]) == pytest.approx([memory_slowdown(a, b), memory_slowdown(b, a)])
        law = memory_slowdown(a, sum(demands[1:]))
        assert law == pytest.approx(exact_slowdowns(demands)[0], rel=0.1)
