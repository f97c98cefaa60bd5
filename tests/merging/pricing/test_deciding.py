"""What is merged: never what does not pay, always what does, and all of it said."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from chains import HandBuild, chain, super_of

from gkestimator.merging.editing import EditableModel
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import MergeDecision, Price, Pricer, decide
from gkestimator.merging.pricing.deciding import _confidence


def decided(
    models: list[EditableModel], places: list[int], batch: int = 1, **options: object
) -> tuple[MergeDecision, HandBuild]:
    build = HandBuild(models, [batch] * len(models))
    supers = [super_of(models, place) for place in places]
    pricer = Pricer(MergeOptions(**options))  # type: ignore[arg-type]
    return decide(models, supers, build, pricer, batch_sizes=[batch] * len(models)), build


def test_a_trunk_that_pays_is_kept_and_nothing_is_built_twice() -> None:
    models = [chain("a", width=1024, layers=4), chain("b", width=1024, layers=4)]
    found, build = decided(models, [0, 1, 2])
    assert build.calls == [(3, True)]
    assert len(found.kept) == 3 and not found.refused
    (region,) = found.regions
    assert region.pays and region.lifted and region.supers == (0, 1, 2)
    assert found.after.latency_ms < found.before.latency_ms
    block = 1024 * 1024 * 4
    assert found.before.weight_bytes - found.after.weight_bytes == found.saved_bytes == 3 * block
    assert [s.saved_bytes for s in found.supers] == [block] * 3
    # one row more or less per model is all that the products do not share
    assert found.after.flops == found.before.flops
    # a trunk copies in and out: Concat and Split read and write both models' values, one Relu less moves nothing less
    value = 16 * 1024 * 4
    moved = [p.dram_bytes - p.weight_bytes for p in (found.before, found.after)]
    assert moved[1] - moved[0] == 2 * 2 * 2 * value
    assert found.confidence == "alike"


def test_a_product_too_small_to_pay_for_its_copies_is_left_alone() -> None:
    # activations as large as the weight: reading the weight once saves less than Concat and Split cost
    models = [chain("a", width=256, rows=2048), chain("b", width=256, rows=2048)]
    found, build = decided(models, [1], batch=8)
    assert build.calls == [(1, True), (1, False), (0, False)]
    assert not found.kept and len(found.refused) == 1
    assert not any(n.name.startswith("merged/") for n in found.built.model.nodes)
    assert [(r.supers, r.pays, r.lifted) for r in found.regions] == [((0,), False, False)]
    (told,) = found.supers
    assert told.region == 0 and told.after is None and told.working_bytes is None and told.fits_l2 is None
    assert found.confidence is None
    # weights of zeros are all equal, and stored once
    assert replace(found.after, resident_bytes=found.before.resident_bytes) == found.before
    assert found.saved_bytes == 0


def test_always_keeps_what_does_not_pay_and_says_so() -> None:
    models = [chain("a", width=256, rows=2048), chain("b", width=256, rows=2048)]
    found, build = decided(models, [1], batch=8, always=True)
    assert build.calls == [(1, True)]
    assert len(found.kept) == 1
    assert found.after.latency_ms > found.before.latency_ms
    assert found.confidence == "open"
    assert not found.regions[0].pays


def test_nothing_to_decide() -> None:
    found, build = decided([chain("a"), chain("b")], [])
    assert build.calls == [(0, False)]
    assert (found.supers, found.regions, found.confidence) == ((), (), None)
    # weights of zeros are all equal, and stored once
    assert replace(found.after, resident_bytes=found.before.resident_bytes) == found.before


def test_the_l2_cache() -> None:
    models = [chain("a", widths=[2048, 2048, 512, 512]), chain("b", widths=[2048, 2048, 512, 512])]
    found, _ = decided(models, [0, 2], gpu="V100", always=True)
    assert found.l2_bytes == 6 * 2**20
    large, small = found.supers
    assert (large.block_bytes, large.block_fits_l2, large.fits_l2) == (2048 * 2048 * 4, False, False)
    assert (small.block_bytes, small.block_fits_l2, small.fits_l2) == (512 * 512 * 4, True, True)
    # the block, what is concatenated, and what comes out
    assert small.working_bytes == (512 * 512 + 2 * 16 * 512 + 2 * 16 * 512) * 4


@pytest.mark.slow
@pytest.mark.parametrize("price", ["gpu", "latency"])
@pytest.mark.parametrize("seed", range(6))
def test_no_other_choice_is_cheaper(price: str, seed: int) -> None:
    """Against every subset, lifted and not: chains whose products differ in size, so that some pay and some do not.

    Kernels' times add up, so by ``gpu`` the choice has to be the best there is. The timeline's do not: a product may
    pay beside another only; there the choice may not be worse than nothing and all.
    """
    dice = random.Random(seed)
    widths = [dice.choice([64, 128, 512, 1024, 2048]) for _ in range(5)]
    rows = dice.choice([1, 16, 256])
    models = [chain(n, widths=widths, rows=rows, bias=True) for n in "ab"]
    found, _ = decided(models, [0, 1, 2, 3], price=price)
    pricer, build = Pricer(MergeOptions(price=price)), HandBuild(models, [1, 1])
    supers = [super_of(models, place) for place in range(4)]
    best = min(
        pricer.merged(build(some, lifted).model, models, [1, 1]).price.measure(price)
        for count in (range(5) if price == "gpu" else (0, 4))
        for some in itertools.combinations(supers, count)
        for lifted in ((True, False) if price == "gpu" else (True,))
    )
    assert found.after.measure(price) <= best * (1 + 1e-9)
    assert found.after.measure(price) <= found.before.measure(price) * (1 + 1e-9)


def test_some_pay_and_some_do_not() -> None:
    models = [chain(n, widths=[4096, 4096, 32, 32], rows=1, bias=True) for n in "ab"]
    found, build = decided(models, [0, 2], price="gpu")
    assert [s.kept for s in found.supers] == [True, False]
    assert build.calls == [(2, True), (1, False), (1, True)]
    assert found.after.gpu_ms < found.before.gpu_ms
    first, second = found.supers
    assert first.after is not None and first.after.gpu_ms < first.before.gpu_ms
    assert found.regions[second.region].lifted is False


def test_a_part_that_is_shared_does_not_keep_a_trunk_from_paying() -> None:
    """One layer in the middle shares half of its rows: merging that costs more than the trunks around it save."""
    models = [chain(n, layers=5, width=768, rows=4) for n in "ab"]
    build, pricer = HandBuild(models, [1, 1]), Pricer(MergeOptions())
    supers = [super_of(models, place, rows=384 if place == 2 else None) for place in range(5)]
    everything = pricer.merged(build(supers, True).model, models, [1, 1]).price
    build.calls.clear()
    found = decide(models, supers, build, pricer, batch_sizes=[1, 1])
    assert [s.kept for s in found.supers] == [True, True, False, True, True]
    assert found.after.latency_ms < min(everything.latency_ms, found.before.latency_ms)
    # all, the whole ones, the part by itself: what stays is the second, which is not built again
    assert build.calls == [(5, True), (4, True), (1, False)]
    assert [(r.supers, r.pays) for r in found.regions] == [((0, 1), True), ((3, 4), True), ((2,), False)]
    part = found.regions[found.supers[2].region]
    assert (part.supers, part.lifted, part.pays) == ((2,), False, False)
    assert part.after.calls == 2 * part.before.calls + 7


def test_a_part_that_is_worth_it_is_merged() -> None:
    models = [chain(n, layers=3, width=4096, rows=1) for n in "ab"]
    build, pricer = HandBuild(models, [1, 1]), Pricer(MergeOptions())
    found = decide(models, [super_of(models, 1, rows=3072)], build, pricer, batch_sizes=[1, 1])
    (told,) = found.supers
    assert told.kept and told.saved_bytes == 3072 * 4096 * 4
    assert found.before.weight_bytes - found.after.weight_bytes == told.saved_bytes
    assert found.after.latency_ms < found.before.latency_ms


def test_the_same_input_gives_the_same_decision() -> None:
    models = [chain(n, widths=[512, 2048, 64, 1024], rows=8, bias=True) for n in "abc"]
    one, other = (decided(models, [0, 1, 2], batch=2, price="gpu")[0] for _ in range(2))
    assert one.built.model.nodes == other.built.model.nodes
    assert one.built.replaces == other.built.replaces
    assert replace(one, built=other.built) == other


def test_half_precision_halves_the_block() -> None:
    models = [chain("a", width=1024), chain("b", width=1024)]
    found, _ = decided(models, [0, 1, 2], gpu="A100-PCIE-40GB", dtype="fp16")
    assert [s.block_bytes for s in found.supers] == [1024 * 1024 * 2] * 3
    assert found.before.weight_bytes - found.after.weight_bytes == found.saved_bytes


def test_three_models_read_a_block_once() -> None:
    models = [chain(n, width=1024) for n in "abc"]
    found, _ = decided(models, [0, 1, 2])
    assert len(found.kept) == 3
    assert [s.saved_bytes for s in found.supers] == [2 * 1024 * 1024 * 4] * 3
    assert found.before.weight_bytes - found.after.weight_bytes == found.saved_bytes


def test_confidence() -> None:
    price = Price(latency_ms=10, gpu_ms=9, dram_bytes=1, weight_bytes=1, flops=1, kernels=1, calls=1,
                  latency_low_ms=8, latency_high_ms=12)  # fmt: skip
    assert _confidence(price, replace(price, latency_low_ms=5, latency_high_ms=7.9)) == "apart"
    assert _confidence(price, replace(price, latency_low_ms=7, latency_high_ms=11)) == "alike"
    assert _confidence(price, replace(price, latency_low_ms=7, latency_high_ms=13)) == "open"
    assert _confidence(price, replace(price, latency_low_ms=7, latency_high_ms=None)) == "open"
