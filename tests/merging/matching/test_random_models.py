"""What holds of every matching, on random models with cycles in the making."""

from __future__ import annotations

import itertools
import math
import random

import networkx as nx
import numpy as np
import pytest
from _matching_graphs import largest_common_area, operators, products

from gkestimator.merging.editing import EditableModel
from gkestimator.merging.matching import match_all
from gkestimator.merging.operators import SuperOperator, WeightOperator
from gkestimator.merging.options import MergeOptions

POOL = [np.random.default_rng(k).integers(0, 3, (2 + k % 3, 3)).astype(np.float32) for k in range(4)]


def _random_models(draw: random.Random, count: int) -> list[EditableModel]:
    """Operators in random order that read each other's results, by weights from a small pool."""
    models = []
    for m in range(count):
        size = draw.randint(1, 6)
        reads = [draw.choice([None, *range(k)]) for k in range(size)]
        models.append(products(f"m{m}", [draw.choice(POOL) for _ in range(size)], reads))
    return models


def _merged_graph(models: list[EditableModel], supers: tuple[SuperOperator, ...]) -> nx.MultiDiGraph:
    unit = {m.operator.node.name: k for k, s in enumerate(supers) for m in s.members}
    graph = nx.MultiDiGraph()
    for model in models:
        writer = {v: n.name for n in model.nodes for v in n.writes}
        for node in model.nodes:
            for value in node.reads:
                if value in writer:
                    graph.add_edge(unit.get(writer[value], writer[value]), unit.get(node.name, node.name))
    return graph


def _similar(a: WeightOperator, b: WeightOperator) -> float:
    one, other = a.matrix.array()[:, :, 0], b.matrix.array()[:, :, 0]
    return 2 * largest_common_area(one, other, 1e-7) / (one.size + other.size)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_matching_can_be_run_and_is_as_similar_as_it_says(count: int) -> None:
    draw = random.Random(count)
    dropped = large = 0
    for _ in range(25):
        models = _random_models(draw, count)
        own = operators(models)
        options = MergeOptions(tau_ms=math.inf, omega=draw.choice([0.4, 0.7]))
        found = match_all(models, own, [range(count)], options)
        assert nx.is_directed_acyclic_graph(_merged_graph(models, found.supers))
        members = [m.operator for s in found.supers for m in s.members]
        assert len({(o.model, o.position) for o in members}) == len(members)
        for s in found.supers:
            assert len({m.operator.model for m in s.members}) == len(s.members) > 1
            first, *others = (
                m.operator.matrix.array()[m.row : m.row + s.rows, m.column : m.column + s.columns]
                for m in s.members
            )
            assert first.shape == (s.rows, s.columns, 1)
            assert all(np.array_equal(first, other) for other in others)
            for a, b in itertools.combinations([m.operator for m in s.members], 2):
                shared = 2 * s.rows * s.columns / (a.matrix.elements + b.matrix.elements)
                assert options.omega <= s.similarity <= shared <= _similar(a, b) + 1e-12
            large += len(s.members) > 2
        dropped += sum(r.reason == "cycle" for r in found.refused)
        assert match_all(models, own, [range(count)], options) == found
    assert dropped > 0
    assert (large > 0) is (count > 2)


@pytest.mark.slow
def test_of_two_models_nobody_is_left_who_could_be_merged() -> None:
    draw = random.Random(9)
    for _ in range(60):
        models = _random_models(draw, 2)
        own = operators(models)
        found = match_all(models, own, [(0, 1)], MergeOptions(tau_ms=math.inf))
        taken = {m.operator.node.name for s in found.supers for m in s.members}
        free = [[o for o in side if o.node.name not in taken] for side in own]
        graph = _merged_graph(models, found.supers)
        for a, b in itertools.product(*free):
            if _similar(a, b) >= 0.4:
                graph.add_nodes_from([a.node.name, b.node.name])
                both = nx.contracted_nodes(graph, a.node.name, b.node.name)
                assert not nx.is_directed_acyclic_graph(both)
