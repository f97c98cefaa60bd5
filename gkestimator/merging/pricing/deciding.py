"""Decide which super-operators stay: those in regions whose price falls, as long as the whole gets cheaper
too.

USHER (section 3.4) merges whatever is similar enough. Here the estimator is asked first: the copies around a
shared product (Concat, Split) can cost more than reading its weight once saves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gkestimator.core.kernels import Kernel
from gkestimator.core.records import frozen
from gkestimator.merging.editing import BatchSizes, EditableModel, Models, Names, Numbers, Replaces, tidy
from gkestimator.merging.operators import SuperOperator
from gkestimator.merging.pricing.pricer import Price, Priced, Pricer
from gkestimator.merging.pricing.regions import Region, find_regions

PricedRegions: TypeAlias = "list[PricedRegion]"
SuperOperators: TypeAlias = "tuple[SuperOperator, ...]"
Confidence: TypeAlias = Literal["apart", "alike", "open"]


@frozen
class Built:
    """Hold a merged graph.

    ``replaces``: for every node that merging made, the original nodes it stands for (``()`` for helpers).
    ``parts[i]``: the nodes that super-operator i was emitted as; where something was lifted, the helpers
    among them (or none: not told).
    """

    model: EditableModel
    replaces: Replaces
    parts: tuple[Names, ...] = ()


@frozen
class PricedRegion:
    """Hold a region and whether its price falls.

    ``supers``: places in the list that was decided on. ``lifted`` False: the super-operator by itself, after
    its region did not pay.
    """

    supers: Numbers
    originals: Names
    merged: Names
    before: Price
    after: Price
    pays: bool
    lifted: bool


@frozen
class PricedSuper:
    """Hold one super-operator with what is told of it.

    ``region``: its place in ``Decision.regions``: of the graph where it was kept, else what spoke against it
    (a region that pays, where the whole did not). ``before``: the members' calls among the originals;
    ``after``: the calls that multiply in their place, without the copies around them, which are the region's;
    None where it was not kept. ``block_bytes``: the shared block, which ``n`` members read once instead of n
    times, so that ``saved_bytes`` = (n - 1) * block_bytes. ``extra_flops``: the work of all that was made for
    it (sums of parts and padding too) less the members', both with what the runtime fuses to the members
    (None: not kept). ``working_bytes``: what the shared product reads and writes (None: not kept).
    ``block_fits_l2`` and ``fits_l2``: whether these fit the L2 cache.
    """

    op: SuperOperator
    kept: bool
    region: int
    before: Price
    after: Price | None
    block_bytes: int
    saved_bytes: int
    extra_flops: int | None
    block_fits_l2: bool
    working_bytes: int | None
    fits_l2: bool | None


@frozen
class MergeDecision:
    """Hold what was decided.

    ``built``: its graph is tidy. ``supers`` in the order given. ``regions``: those of the graph, then those
    of what was refused. ``before``: the originals one after the other, launched back to back. ``after``: the
    graph that was chosen (with nothing merged: the originals side by side in it).

    ``confidence``: whether the latency falls, of a graph with something merged. ``apart``: the 90 % intervals
    of before and after do not overlap. ``alike``: they do, but after is below before at both ends, so that it
    pays wherever the estimator errs alike for both, as for the same kernels on the same GPU it mostly does.
    ``open``: cannot be told, or it does not fall. None: nothing merged.
    """

    built: Built
    supers: tuple[PricedSuper, ...]
    regions: tuple[PricedRegion, ...]
    before: Price
    after: Price
    confidence: Confidence | None
    l2_bytes: int
    unknown_operators: Names

    @property
    def kept(self) -> SuperOperators:
        """Return the super-operators in the graph."""
        return tuple(op.op for op in self.supers if op.kept)

    @property
    def refused(self) -> SuperOperators:
        """Return those that did not pay."""
        return tuple(op.op for op in self.supers if not op.kept)

    @property
    def saved_bytes(self) -> int:
        """Return the bytes of weights read once instead of once for each member."""
        return sum(op.saved_bytes for op in self.supers if op.kept)


_ROUNDING = 1e-9


#: Makes the merged graph that has the super-operators in it; True: and what follows them run once.
Build: TypeAlias = "Callable[[Sequence[SuperOperator], bool], Built]"


@dataclass(frozen=True, slots=True)
class _Try:
    """Hold a graph that was built and priced, with the places of its super-operators."""

    places: Numbers
    lifted: bool
    built: Built
    priced: Priced


def decide(
    models: Models,
    supers: Sequence[SuperOperator],
    build: Build,
    pricer: Pricer,
    *,
    batch_sizes: BatchSizes,
) -> MergeDecision:
    """Choose among ``supers`` and build the graph of those that stay.

    All are built and lifted first, and once more without those that share a part of a weight only, where
    there are both kinds: what is left over of a part keeps a trunk from being lifted through. Of the cheaper
    graph, every region (:mod:`gkestimator.merging.pricing.regions`) is compared with the calls that it
    replaces, both priced where they are on their timelines. What does not pay, or was left out, is taken
    apart: each super-operator is built by itself, not lifted, and stays where its own price falls. Of all
    graphs so found the one with the lowest price is chosen, and where it is no lower than the originals one
    after the other, nothing is merged. ``MergeOptions.always`` keeps all without asking. The same input gives
    the same decision: ties go to the graph with fewer super-operators. Raises what pricing and ``build``
    raise.
    """
    options = pricer.options
    before = pricer.originals(models, batch_sizes)
    choice = _Choice(models, tuple(supers), build, pricer, batch_sizes, before)
    chosen: _Try | None = None
    tried: PricedRegions = []
    if supers:
        tries = [choice.attempt(range(len(supers)), lifted=True)]
        if not options.always:
            clean = [place for place, op in enumerate(supers) if op.whole]
            if 0 < len(clean) < len(supers):
                tries.append(choice.attempt(clean, lifted=True))
            base = choice.cheapest(tries)
            tried = choice.regions(base)
            tries += choice.apart(base, tried)
        best = choice.cheapest(tries)
        if options.always or _falls(before.price, best.priced.price, options.price):
            chosen = best
    if chosen is None:
        chosen = choice.attempt((), lifted=False)
    regions = choice.deciding(chosen, tried)
    model = tidy(chosen.built.model)  # each weight once: in what is written alone, for all bytes are compared
    after = pricer.merged(model, models, batch_sizes).price
    return MergeDecision(
        built=replace(chosen.built, model=model),
        supers=choice.outcomes(chosen, regions),
        regions=tuple(regions),
        before=before.price,
        after=after,
        confidence=_confidence(before.price, after) if chosen.places else None,
        l2_bytes=pricer.l2_bytes,
        unknown_operators=before.unknown_operators,
    )


def _falls(before: Price, after: Price, which: str) -> bool:
    """Return True where the price falls by more than the rounding of sums in another order."""
    return after.measure(which) < before.measure(which) * (1 - _ROUNDING)


def _confidence(before: Price, after: Price) -> Confidence:
    ends = (before.latency_low_ms, before.latency_high_ms, after.latency_low_ms, after.latency_high_ms)
    if any(end is None for end in ends):
        return "open"
    low, high, after_low, after_high = (float(end) for end in ends if end is not None)
    if after_high < low:
        return "apart"
    if after_low < low and after_high < high:
        return "alike"
    return "open"


def _paying(regions: Sequence[PricedRegion]) -> list[int]:
    """Return the places of the super-operators whose region pays."""
    places: list[int] = []
    for region in regions:
        if region.pays:
            places += region.supers
    return sorted(places)


class _Choice:
    """Take the steps of :func:`decide` over what does not change."""

    def __init__(
        self,
        models: Models,
        supers: SuperOperators,
        build: Build,
        pricer: Pricer,
        batch_sizes: BatchSizes,
        before: Priced,
    ) -> None:
        self._models = models
        self._supers = supers
        self._build = build
        self._pricer = pricer
        self._batch_sizes = batch_sizes
        self._before = before
        self._fused = {name: group for group in before.groups.values() for name in group}
        self._members = [op.names for op in supers]

    def attempt(self, places: Collection[int], *, lifted: bool) -> _Try:
        """Build and price the graph of the super-operators at ``places``."""
        built = self._build([self._supers[place] for place in places], lifted)
        priced = self._pricer.merged(built.model, self._models, self._batch_sizes)
        return _Try(tuple(places), lifted, built, priced)

    def cheapest(self, tries: Sequence[_Try]) -> _Try:
        """Return the graph with the lowest price; of equal ones the one with the fewest super-operators, then
        the first.
        """
        which = self._pricer.options.price
        return min(tries, key=lambda tried: (tried.priced.price.measure(which), len(tried.places)))

    def regions(self, tried: _Try) -> PricedRegions:
        """Return the regions of a graph with their prices."""
        parts = tried.built.parts
        if tried.lifted:
            parts = ()
        members = [self._members[place] for place in tried.places]
        regions = find_regions(
            tried.built.model, tried.built.replaces, members, self._before, tried.priced, parts=parts
        )
        return [self._priced(region, tried) for region in regions]

    def _priced(self, region: Region, tried: _Try) -> PricedRegion:
        before = self._before.piece(region.originals)
        after = tried.priced.piece(region.merged)
        return PricedRegion(
            supers=tuple(tried.places[at] for at in region.supers),
            originals=tuple(sorted(region.originals)),
            merged=tuple(sorted(region.merged)),
            before=before,
            after=after,
            pays=_falls(before, after, self._pricer.options.price),
            lifted=tried.lifted,
        )

    def apart(self, base: _Try, tried: PricedRegions) -> list[_Try]:
        """Return graphs without what does not pay in ``base``, and with what pays by itself.

        What is learned of single super-operators is added to ``tried``, the regions of ``base``.
        """
        staying = _paying(tried)
        failed = sorted(set(range(len(self._supers))).difference(staying))
        if not failed:
            return []
        alone = self.attempt(failed, lifted=False)
        singles = self.regions(alone)
        tried += singles
        paying = _paying(singles)
        both = tuple(sorted((*staying, *paying)))
        tries = []
        for places in dict.fromkeys((tuple(staying), both)):
            if places and places != base.places:
                tries.append(self.attempt(places, lifted=True))
        if paying:  # what failed lifted may pay only as it was priced: not lifted
            tries.append(self.attempt(both, lifted=False))
        return tries

    def deciding(self, chosen: _Try, tried: Sequence[PricedRegion]) -> PricedRegions:
        """Return the regions of the graph that was chosen, then those that spoke against each of the others
        last.
        """
        against: dict[int, int] = {}
        for at, region in enumerate(tried):
            against.update(dict.fromkeys(region.supers, at))
        for place in chosen.places:
            against.pop(place, None)
        return self.regions(chosen) + [tried[at] for at in sorted(set(against.values()))]

    def outcomes(self, chosen: _Try, regions: Sequence[PricedRegion]) -> tuple[PricedSuper, ...]:
        """Return what is said of every super-operator."""
        by_original: dict[str, list[str]] = defaultdict(list)
        for name, originals in chosen.built.replaces.items():
            for original in originals:
                by_original[original].append(name)
        kept = set(chosen.places)
        decided: dict[int, int] = {}
        for at, region in enumerate(regions):
            for place in region.supers:
                if place not in kept or place not in decided:
                    decided[place] = at
        return tuple(
            self._outcome(place, decided[place], by_original if place in kept else None, chosen)
            for place in range(len(self._supers))
        )

    def _outcome(
        self, place: int, region: int, by_original: Mapping[str, list[str]] | None, chosen: _Try
    ) -> PricedSuper:
        op = self._supers[place]
        members = self._members[place]
        matrix = op.members[0].operator.matrix
        block = self._pricer.stored_bytes(matrix.dtype, op.rows * op.columns * matrix.taps)
        after: Price | None = None
        largest: Kernel | None = None
        extra: int | None = None
        if by_original is not None:
            nodes = sorted({name for member in members for name in by_original.get(member, ())})
            after = chosen.priced.piece(nodes)
            largest = chosen.priced.largest_kernel(nodes)
            extra = self._extra_flops(chosen, place, by_original)
        if largest is None:
            working = None
        else:
            working = largest.read_bytes + largest.write_bytes
        l2 = self._pricer.l2_bytes
        return PricedSuper(
            op=op,
            kept=by_original is not None,
            region=region,
            before=self._before.piece(members),
            after=after,
            block_bytes=block,
            saved_bytes=(len(members) - 1) * block,
            extra_flops=extra,
            block_fits_l2=block <= l2,
            working_bytes=working,
            fits_l2=None if working is None else working <= l2,
        )

    def _extra_flops(self, chosen: _Try, place: int, by_original: Mapping[str, list[str]]) -> int:
        """Return what a super-operator that was kept calculates beyond its members.

        What the runtime fused to a member (a bias, an activation) counts on both sides, wherever it is
        calculated now.
        """
        originals = {near for name in self._members[place] for near in self._fused.get(name, (name,))}
        nodes = {node for name in originals for node in by_original.get(name, (name,))}
        if chosen.built.parts:
            nodes.update(chosen.built.parts[chosen.places.index(place)])
        return chosen.priced.flops(nodes) - self._before.flops(originals)
