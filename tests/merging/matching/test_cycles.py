"""Which contractions make a cycle, against networkx on random graphs of several models."""

from __future__ import annotations

import random

import networkx as nx
import numpy as np
import pytest
from _matching_graphs import model, operators

from gkestimator.merging.editing import EditableModel, EditNode
from gkestimator.merging.matching.cycles import Contraction

SQUARE = np.ones((2, 2), np.float32)


def _random_model(name: str, draw: random.Random) -> EditableModel:
    """Nodes that read any values before them; some multiply by a weight, some read from within a subgraph."""
    values, nodes, weights = [f"{name}/x"], [], {}
    for k in range(draw.randint(2, 14)):
        out = (f"{name}/y{k}", f"{name}/z{k}")
        if draw.random() < 0.6:
            nodes.append(
                EditNode(
                    name=f"{name}/op{k}",
                    op_type="MatMul",
                    inputs=(draw.choice(values), f"{name}/w{k}"),
                    outputs=out[:1],
                )
            )
            weights[f"{name}/w{k}"] = SQUARE
        else:
            read = draw.sample(values, min(len(values), draw.randint(1, 3)))
            nodes.append(
                EditNode(
                    name=f"{name}/op{k}",
                    op_type="If",
                    inputs=(read[0], ""),
                    outputs=out,
                    outer=tuple(read[1:]),
                )
            )
        values += nodes[-1].writes
    return model(name, nodes, weights, [f"{name}/x"])


def _graph(models: list[EditableModel]) -> nx.DiGraph:
    graph = nx.DiGraph()
    for m in models:
        writer = {v: n.name for n in m.nodes for v in n.writes}
        graph.add_nodes_from(n.name for n in m.nodes)
        graph.add_edges_from((writer[v], n.name) for n in m.nodes for v in n.reads if v in writer)
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_as_networkx_says(count: int) -> None:
    draw = random.Random(count)
    seen = {True: 0, False: 0}
    for _ in range(60):
        models = [_random_model(f"m{k}", draw) for k in range(count)]
        own = operators(models)
        contraction = Contraction(models, own)
        graph = _graph(models)
        unit = {o.node.name: o.node.name for row in own for o in row}
        every = [(m, k) for m, row in enumerate(own) for k in range(len(row))]
        pairs = [(a, b) for a in every for b in every if a[0] < b[0]]
        for a, b in draw.sample(pairs, min(len(pairs), 25)):
            one, other = (unit[own[m][k].node.name] for m, k in (a, b))
            merged = graph if one == other else nx.contracted_nodes(graph, one, other, self_loops=True)
            cyclic = not nx.is_directed_acyclic_graph(merged)
            assert contraction.makes_cycle(a, b) is contraction.makes_cycle(b, a) is cyclic
            seen[cyclic] += 1
            if cyclic:
                with pytest.raises(ValueError, match="makes a cycle"):
                    contraction.contract(a, b)
                continue
            contraction.contract(a, b)
            graph = merged
            unit = {name: one if u == other else u for name, u in unit.items()}
    assert min(seen.values()) > 200


def test_contracting_twice_changes_nothing() -> None:
    draw = random.Random(0)
    models = [_random_model(name, draw) for name in "ab"]
    contraction = Contraction(models, operators(models))
    contraction.contract((0, 0), (1, 0))
    assert not contraction.makes_cycle((1, 0), (0, 0))
    contraction.contract((0, 0), (1, 0))
    assert not contraction.makes_cycle((0, 0), (1, 0))
