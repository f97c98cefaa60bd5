"""What is said of a decision: the graph, and of every super-operator and region what it costs and saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from gkestimator.core.records import frozen
from gkestimator.merging.editing import EditableModel
from gkestimator.merging.operators import SuperOperator
from gkestimator.merging.pricing.price import Price

Confidence: TypeAlias = Literal["apart", "alike", "open"]


@frozen
class Built:
    """A merged graph. ``replaces``: for every node that merging made, the original nodes it stands for (``()`` for
    helpers). ``parts[i]``: the nodes that super-operator i was emitted as; where something was lifted, the helpers
    among them (or none: not told)."""

    model: EditableModel
    replaces: Mapping[str, tuple[str, ...]]
    parts: tuple[tuple[str, ...], ...] = ()


@frozen
class PricedRegion:
    """A region and whether its price falls. ``supers``: places in the list that was decided on. ``lifted`` False: the
    super-operator by itself, after its region did not pay."""

    supers: tuple[int, ...]
    originals: tuple[str, ...]
    merged: tuple[str, ...]
    before: Price
    after: Price
    pays: bool
    lifted: bool


@frozen
class PricedSuper:
    """One super-operator with what is told of it.

    ``region``: its place in ``Decision.regions``: of the graph where it was kept, else what spoke against it (a region
    that pays, where the whole did not). ``before``: the members' calls among the originals;
    ``after``: the calls that multiply in their place, without the copies around them, which are the region's; None
    where it was not kept. ``block_bytes``: the shared block, which ``n`` members read once instead of n times, so
    that ``saved_bytes`` = (n - 1) * block_bytes. ``extra_flops``: the work of all that was made for it (sums of parts
    and padding too) less the members', both with what the runtime fuses to the members (None: not kept).
    ``working_bytes``: what the shared product reads and writes
    (None: not kept). ``block_fits_l2`` and ``fits_l2``: whether these fit the L2 cache.
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
    """What was decided.

    ``built``: its graph is tidy. ``supers`` in the order given. ``regions``: those of the graph, then those of what
    was refused. ``before``: the originals one after the other, launched back to back. ``after``: the graph that was
    chosen (with nothing merged: the originals side by side in it).

    ``confidence``: whether the latency falls, of a graph with something merged. ``apart``: the 90 % intervals of
    before and after do not overlap. ``alike``: they do, but after is below before at both ends, so that it pays
    wherever the estimator errs alike for both, as for the same kernels on the same GPU it mostly does. ``open``:
    cannot be told, or it does not fall. None: nothing merged.
    """

    built: Built
    supers: tuple[PricedSuper, ...]
    regions: tuple[PricedRegion, ...]
    before: Price
    after: Price
    confidence: Confidence | None
    l2_bytes: int
    unknown_operators: tuple[str, ...]

    @property
    def kept(self) -> tuple[SuperOperator, ...]:
        """The super-operators in the graph."""
        return tuple(s.op for s in self.supers if s.kept)

    @property
    def refused(self) -> tuple[SuperOperator, ...]:
        """Those that did not pay."""
        return tuple(s.op for s in self.supers if not s.kept)

    @property
    def saved_bytes(self) -> int:
        """Bytes of weights read once instead of once for each member."""
        return sum(s.saved_bytes for s in self.supers if s.kept)
