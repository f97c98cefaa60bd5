"""Tell which parts of a merged graph are decided on together: merged nodes that touch, with what they
replace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.merging.algorithms import DisjointSets
from gkestimator.merging.editing import EditableModel, Numbers, Replaces
from gkestimator.merging.pricing.pricer import Priced

NodeGroups: TypeAlias = "Sequence[Sequence[str]]"
NameSets: TypeAlias = "dict[str, set[str]]"


@frozen
class Region:
    """Hold nodes that are priced as one.

    ``originals`` run before merging, ``merged`` in their place after it.

    Both hold every node of a call that the runtime fuses over the region's edge (a product and the bias
    behind it), so that before and after do the same work. ``supers``: places of its super-operators.
    """

    originals: frozenset[str]
    merged: frozenset[str]
    supers: Numbers


def find_regions(
    model: EditableModel,
    replaces: Replaces,
    members: NodeGroups,
    before: Priced,
    after: Priced,
    *,
    parts: NodeGroups = (),
) -> list[Region]:
    """Return the regions of ``model``, in the order of their first super-operator (or node).

    ``replaces``: what every merged node stands for (helpers: nothing). ``members``: names of the original
    nodes of every super-operator. ``parts``: the nodes that each super-operator was emitted as; where they
    are given, nodes of different parts that merely touch stay apart, so that every super-operator has a price
    of its own.
    """
    sets = _together(model, replaces, members, before, after, parts)
    merged, originals_of = _contents(model, replaces, sets, before, after)
    supers: dict[str, list[int]] = {}
    for place, names in enumerate(members):
        supers.setdefault(sets.find(names[0]), []).append(place)
    regions = []
    for root, names_after in merged.items():
        originals = frozenset(originals_of[root])
        places = tuple(supers.get(root, ()))
        regions.append(Region(originals=originals, merged=frozenset(names_after), supers=places))
    return sorted(regions, key=lambda region: region.supers or (len(members),))


def _together(
    model: EditableModel,
    replaces: Replaces,
    members: NodeGroups,
    before: Priced,
    after: Priced,
    parts: NodeGroups,
) -> DisjointSets[str]:
    """Tell which nodes, of both graphs, belong to one region."""
    sets = DisjointSets[str]()
    if parts:
        for part in parts:
            sets.join(part)
    else:
        maker = {value: node.name for node in model.nodes if node.name in replaces for value in node.writes}
        for node in model.nodes:
            if node.name in replaces:
                sets.join((node.name, *(maker[value] for value in node.reads if value in maker)))
    # a merged node and what it replaces are decided on together
    for name, originals in replaces.items():
        sets.join((name, *originals))
    for names in members:
        sets.join(names)
    for priced in (before, after):
        for group in priced.groups.values():
            sets.join(group)
    return sets


def _contents(
    model: EditableModel,
    replaces: Replaces,
    sets: DisjointSets[str],
    before: Priced,
    after: Priced,
) -> tuple[NameSets, NameSets]:
    """Return by region, in the order of their first merged nodes: the nodes after merging, and before it."""
    replaced = {name for originals in replaces.values() for name in originals}
    staying = {node.name for node in model.nodes}
    merged: NameSets = {}
    originals_of: NameSets = {}
    for node in model.nodes:
        if node.name in replaces:
            root = sets.find(node.name)
            merged.setdefault(root, set()).add(node.name)
            originals_of.setdefault(root, set()).update(replaces[node.name])
    for group in (*before.groups.values(), *after.groups.values()):
        root = sets.find(group[0])
        if root not in merged:
            continue
        for name in group:
            stays = name in staying and name not in replaces
            if name in replaced:
                originals_of[root].add(name)
            elif stays:
                merged[root].add(name)
                originals_of[root].add(name)
    return merged, originals_of
