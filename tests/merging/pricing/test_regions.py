"""Regions: what touches is decided together, and before and after do the same work at every edge."""

from __future__ import annotations

from chains import HandBuild, chain, super_of

from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import Pricer
from gkestimator.merging.pricing.regions import Region, find_regions


def regions(*, places: tuple[int, ...], lifted: bool, parts: bool = False, **sizes: object) -> list[Region]:
    models = [chain("a", **sizes), chain("b", **sizes)]  # type: ignore[arg-type]
    pricer = Pricer(MergeOptions())
    before = pricer.originals(models, [2, 2])
    supers = [super_of(models, place) for place in places]
    built = HandBuild(models, [2, 2])(supers, lifted)
    after = pricer.merged(built.model, models, [2, 2])
    members = [[m.operator.node.name for m in op.members] for op in supers]
    return find_regions(
        built.model, built.replaces, members, before, after, parts=built.parts if parts else ()
    )


def test_a_lifted_trunk_is_one_region() -> None:
    (region,) = regions(places=(0, 1, 2), lifted=True)
    assert region.supers == (0, 1, 2)
    assert region.originals == {f"{m}/{op}{i}" for m in "ab" for op in ("mm", "relu") for i in range(3)}
    assert {"merged/0/concat", "merged/1/mm", "merged/a/relu2", "merged/a/relu2/split"} <= region.merged


def test_what_does_not_touch_is_apart() -> None:
    first, second = regions(places=(0, 2), lifted=False, layers=3)
    assert first.originals == {"a/mm0", "b/mm0"}
    assert first.merged == {"merged/0/concat", "merged/0/mm", "merged/0/split"}
    assert (first.supers, second.supers) == ((0,), (1,))
    assert second.originals == {"a/mm2", "b/mm2"}


def test_a_bias_that_is_fused_with_its_product_before_but_not_after_is_priced_on_both_sides() -> None:
    # [batch, width] x [width, width] + bias: ONNX Runtime makes one Gemm of it; Split between them forbids that.
    (region,) = regions(places=(1,), lifted=False, rows=None, bias=True)
    assert region.originals == {"a/mm1", "b/mm1", "a/add1", "b/add1"}
    assert region.merged == {"merged/0/concat", "merged/0/mm", "merged/0/split", "a/add1", "b/add1"}
    # with three dimensions nothing is fused, so that the additions are nobody's business
    (region,) = regions(places=(1,), lifted=False, rows=8, bias=True)
    assert region.originals == {"a/mm1", "b/mm1"}
    assert region.merged == {"merged/0/concat", "merged/0/mm", "merged/0/split"}


def test_parts_keep_super_operators_apart_that_touch() -> None:
    # without the Relu's names in between, part 0's Split feeds part 1's Concat
    models = [chain("a"), chain("b")]
    pricer = Pricer(MergeOptions())
    before = pricer.originals(models, [1, 1])
    built = HandBuild(models, [1, 1])([super_of(models, 0), super_of(models, 1)], False)
    made = {"merged/a/relu0": ("a/relu0",), "merged/b/relu0": ("b/relu0",)}
    rename = {"a/relu0": "merged/a/relu0", "b/relu0": "merged/b/relu0"}
    from dataclasses import replace

    nodes = [replace(n, name=rename.get(n.name, n.name)) for n in built.model.nodes]
    model = replace(built.model, nodes=nodes)
    after = pricer.merged(model, models, [1, 1])
    members = [["a/mm0", "b/mm0"], ["a/mm1", "b/mm1"]]
    touching = find_regions(model, {**built.replaces, **made}, members, before, after)
    assert [region.supers for region in touching] == [(0, 1)]
    parts = find_regions(model, {**built.replaces, **made}, members, before, after, parts=built.parts)
    assert [region.supers for region in parts] == [(0,), (1,), (), ()]
