"""Which operators become one: against all matchings of small cases, and by hand for three models."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from _matching_graphs import largest_common_area, operators, products

from gkestimator.merging.editing import EditableModel
from gkestimator.merging.matching import Matching, match_all
from gkestimator.merging.operators import SuperOperator
from gkestimator.merging.options import MergeOptions

ANY = MergeOptions(tau_ms=math.inf)
DRAW = np.random.default_rng(0)


def _weights(*shape: int) -> np.ndarray:
    return DRAW.normal(size=shape).astype(np.float32)


def _match(models: list[EditableModel], options: MergeOptions = ANY, **starts: float) -> Matching:
    return match_all(
        models,
        operators(models, {k.replace("_", "/"): v for k, v in starts.items()}),
        [range(len(models))],
        options,
    )


def _names(found: Matching) -> list[tuple[str, ...]]:
    return [tuple(m.operator.node.name for m in s.members) for s in found.supers]


def _holds(s: SuperOperator, tolerance: float = 1e-7) -> None:
    """The block is where each member says, within the tolerance of the first one's values."""
    blocks = [
        m.operator.matrix.array()[m.row : m.row + s.rows, m.column : m.column + s.columns] for m in s.members
    ]
    assert all(b.shape == blocks[0].shape == (s.rows, s.columns, 1) for b in blocks)
    assert all((np.abs(b - blocks[0]) <= tolerance).all() for b in blocks)
    sizes = sorted(m.operator.matrix.elements for m in s.members)
    assert s.similarity == pytest.approx(2 * s.rows * s.columns / sum(sizes[-2:]))


def _best_sum(weights: np.ndarray) -> float:
    """The largest sum of a matching of rows to columns (0: no pair), tried row by row."""

    def rest(row: int, free: frozenset[int]) -> float:
        if row == len(weights):
            return 0.0
        best = rest(row + 1, free)
        for j in free:
            if weights[row, j] > 0:
                best = max(best, weights[row, j] + rest(row + 1, free - {j}))
        return best

    return rest(0, frozenset(range(weights.shape[1])))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_as_good_as_all_matchings_of_a_thousand_small_cases(part: int) -> None:
    draw = np.random.default_rng(part)
    matched = 0
    for _ in range(200):
        a, b = (
            [
                draw.integers(0, 2, draw.integers(1, 5, 2)).astype(np.float32)
                for _ in range(draw.integers(1, 5))
            ]
            for _ in "ab"
        )
        omega, tau = draw.choice([0.1, 0.2, 0.4, 0.6]), draw.choice([0.5, 1.0, math.inf])
        models = [products("a", a), products("b", b)]
        starts = {f"{m.name}/op{k}": float(draw.integers(0, 3)) for m in models for k in range(4)}
        options = MergeOptions(omega=float(omega), tau_ms=float(tau))
        found = match_all(models, operators(models, starts), [(0, 1)], options)
        weights = np.zeros((len(a), len(b)))
        for i, one in enumerate(a):
            for j, other in enumerate(b):
                if abs(starts[f"a/op{i}"] - starts[f"b/op{j}"]) <= tau:
                    similar = 2 * largest_common_area(one, other, 1e-7) / (one.size + other.size)
                    weights[i, j] = similar if similar >= omega else 0
        assert sum(s.similarity for s in found.supers) == pytest.approx(_best_sum(weights))
        for s in found.supers:
            _holds(s)
            i, j = (int(m.operator.node.name[-1]) for m in s.members)
            assert s.similarity == pytest.approx(weights[i, j])
        assert not any(r.reason == "cycle" for r in found.refused)  # nothing reads anything
        matched += len(found.supers)
    assert matched > 150


def test_three_models_share_one_block() -> None:
    whole = _weights(6, 8)
    near = (whole + 5e-8).astype(np.float32)
    found = _match([products("a", [whole]), products("b", [whole]), products("c", [near])])
    assert _names(found) == [("a/op0", "b/op0", "c/op0")]
    (s,) = found.supers
    assert s.whole
    assert s.similarity == 1
    _holds(s)


def test_a_third_model_shrinks_the_block_only_where_more_is_read_once() -> None:
    whole = _weights(6, 8)
    most, half = _weights(6, 8), _weights(6, 8)
    most[1:6, 2:8] = whole[0:5, 1:7]  # 30 of 48 values
    half[0:3, :] = whole[3:6, :]  # 24 of 48: three models would save 2 x 24, two save 48
    models = [products("a", [whole]), products("b", [whole])]
    (s,) = _match([*models, products("c", [most])]).supers
    assert (s.rows, s.columns) == (5, 6)
    assert [(m.row, m.column) for m in s.members] == [(0, 1), (0, 1), (1, 2)]
    assert not s.whole
    _holds(s)
    found = _match([*models, products("c", [half])])
    assert _names(found) == [("a/op0", "b/op0")]
    assert found.supers[0].whole


def test_a_block_is_not_shrunk_below_omega_for_any_member() -> None:
    whole = _weights(6, 8)
    most = _weights(6, 8)
    most[:5, :6] = whole[:5, :6]
    models = [products("a", [whole]), products("b", [whole]), products("c", [most])]
    assert len(_match(models, MergeOptions(tau_ms=math.inf, omega=0.62)).supers[0].members) == 3
    assert len(_match(models, MergeOptions(tau_ms=math.inf, omega=0.63)).supers[0].members) == 2


def test_a_third_model_takes_single_operators_that_are_left() -> None:
    one, two, three, four = (_weights(4, 4) for _ in range(4))
    models = [products("a", [one, two]), products("b", [one, three]), products("c", [one, two, three, four])]
    assert _names(_match(models)) == [("a/op0", "b/op0", "c/op0"), ("a/op1", "c/op1"), ("b/op1", "c/op2")]


def test_models_of_different_groups_are_not_matched() -> None:
    w = _weights(4, 4)
    models = [products(n, [w]) for n in "abcd"]
    found = match_all(models, operators(models), [(3, 0), (1,), (2,)], ANY)
    assert _names(found) == [("a/op0", "d/op0")]


def test_starts_decide_and_those_refused_are_told() -> None:
    w, other = _weights(4, 4), _weights(4, 4)
    models = [products("a", [w, other]), products("b", [w, other])]
    options = MergeOptions(tau_ms=0.25)
    found = _match(models, options, a_op0=0.0, b_op0=0.25, a_op1=1.0, b_op1=1.3)
    assert _names(found) == [("a/op0", "b/op0")]
    (refused,) = found.refused
    assert (refused.operators, refused.reason, refused.similarity) == (("a/op1", "b/op1"), "start", 1.0)
    assert _names(_match(models, ANY, a_op1=0.0, b_op1=9.0)) == [("a/op0", "b/op0"), ("a/op1", "b/op1")]


def test_all_members_start_together_and_not_each_with_the_next() -> None:
    w = _weights(4, 4)
    models = [products(n, [w]) for n in "abc"]
    found = _match(models, MergeOptions(tau_ms=1.0), a_op0=0.0, b_op0=0.8, c_op0=1.6)
    assert _names(found) == [("a/op0", "b/op0")]
    assert [(r.operators, r.reason) for r in found.refused] == [(("a/op0", "b/op0", "c/op0"), "start")]


def test_sums_of_the_same_durations_in_another_order_are_one_start() -> None:
    w = _weights(4, 4)
    models = [products(n, [w]) for n in "ab"]
    early, late = 0.7 + 0.2 + 0.1, 0.1 + 0.2 + 0.7
    assert early < late
    for starts in ((early, late), (late, early)):
        found = _match(models, MergeOptions(tau_ms=0.0), a_op0=starts[0], b_op0=starts[1])
        assert _names(found) == [("a/op0", "b/op0")]


def test_a_start_that_is_not_known_is_with_nobody() -> None:
    models = [products(n, [_weights(4, 4)]) for n in "a"]
    models.append(products("b", [models[0].weights["a/w0"].values.array()]))
    nowhere = {"a_op0": math.nan, "b_op0": math.nan}
    found = _match(models, MergeOptions(tau_ms=1e9), **nowhere)
    assert (found.supers, [r.reason for r in found.refused]) == ((), ["start"])
    assert len(_match(models, ANY, **nowhere).supers) == 1


def test_a_cycle_is_dropped_the_less_similar_pair_first() -> None:
    # a: first then second; b: second then first. Both pairs cannot be one: each would wait for the other.
    first, second = _weights(4, 4), _weights(4, 4)
    nearly = second.copy()
    nearly[0] = 9
    found = _match([products("a", [first, second], [None, 0]), products("b", [nearly, first], [None, 0])])
    assert _names(found) == [("a/op0", "b/op1")]
    (refused,) = found.refused
    assert (refused.operators, refused.reason) == (("a/op1", "b/op0"), "cycle")
    assert refused.similarity == pytest.approx(0.75)


def test_a_cycle_through_three_models() -> None:
    # a1 before a2, b2 before b3, c3 before c1: with 1 and 2 merged, 3 of b and c would close the ring.
    one, two, three = (_weights(4, 4) for _ in range(3))
    models = [
        products("a", [one, two], [None, 0]),
        products("b", [two, three], [None, 0]),
        products("c", [three, one], [None, 0]),
    ]
    found = _match(models)
    assert _names(found) == [("a/op0", "c/op1"), ("a/op1", "b/op0")]
    assert [(r.operators, r.reason) for r in found.refused] == [(("b/op1", "c/op0"), "cycle")]


def test_who_is_free_after_a_cycle_is_matched_again() -> None:
    # All weights are equal, the best matching crosses: b's last goes to a's first only by weights made so.
    w = _weights(8, 8)
    less, least = w.copy(), w.copy()
    less[0], least[:2] = 7, 5
    models = [products("a", [w, less], [None, 0]), products("b", [less, w], [None, 0])]
    found = _match(models)
    # (a0, b1) and (a1, b0) are worth 2 and cross; the first is kept, and nobody else fits behind it.
    assert _names(found) == [("a/op0", "b/op1")]
    assert [r.reason for r in found.refused] == ["cycle"]
    # With one more of b at the end that less resembles, a's second finds it in the next round.
    models[1] = products("b", [less, w, least], [None, 0, 1])
    found = _match(models)
    assert _names(found) == [("a/op0", "b/op1"), ("a/op1", "b/op2")]
    assert found.supers[1].similarity == pytest.approx(6 / 8)
    assert {r.operators for r in found.refused} == {("a/op1", "b/op0")}


def test_what_cannot_be_emitted_is_not_matched() -> None:
    w = _weights(4, 4)
    models = [products(n, [w, w]) for n in "ab"]
    own = operators(models)
    found = match_all(
        models,
        own,
        [(0, 1)],
        ANY,
        can_emit=lambda s: "not the first" if s.members[0].operator.node.name == "a/op0" else None,
    )
    assert _names(found) == [("a/op1", "b/op1")]
    assert {(r.operators, r.reason, r.detail) for r in found.refused} == {
        (("a/op0", "b/op0"), "emission", "not the first")
    }


def test_other_kinds_are_not_matched() -> None:
    w = _weights(4, 4)
    models = [products(n, [w]) for n in "ab"]
    own = operators(models)
    for change in ({"kind": "conv"}, {"geometry": ((1,),)}):
        changed = [own[0], [dataclasses.replace(own[1][0], **change)]]
        assert match_all(models, changed, [(0, 1)], ANY) == Matching(supers=(), refused=())
    half = products("b", [w.astype(np.float16)])
    assert _match([models[0], half]).supers == ()


def test_a_model_merged_with_itself_goes_operator_by_operator() -> None:
    # Every weight is the same (layers that share): like goes to like by the order.
    w = _weights(4, 4)
    chain = [None, *range(5)]
    models = [products(n, [w] * 6, chain) for n in "aab"]
    models[1] = products("c", [w] * 6, chain)
    found = _match(models)
    assert _names(found) == [(f"a/op{k}", f"c/op{k}", f"b/op{k}") for k in range(6)]
    assert found.refused == ()


def test_nothing_to_match() -> None:
    nothing = Matching(supers=(), refused=())
    assert match_all([], [], [], ANY) == nothing
    empty, one = products("a", []), products("b", [_weights(2, 2)])
    assert _match([empty, one]) == _match([one]) == _match([empty]) == nothing
    void = products("c", [np.full((2, 2), np.nan, np.float32)])
    twin = products("d", [np.full((2, 2), np.nan, np.float32)])
    assert _match([void, twin]) == nothing  # NaN equals nothing
    assert _match([void, twin], MergeOptions()) == nothing


def test_a_model_in_two_groups() -> None:
    models = [products(n, [_weights(2, 2)]) for n in "ab"]
    for groups in ([(0, 1), (1,)], [(0, 0)]):
        with pytest.raises(ValueError, match="each model at most once"):
            match_all(models, operators(models), groups, ANY)


def test_infinite_weights_are_equal_to_themselves() -> None:
    w = np.array([[np.inf, 1.0], [-np.inf, 2.0]], np.float32)
    models = [products("a", [w]), products("b", [w])]
    found = _match(models, MergeOptions(), b_op0=3.0)
    assert [r.reason for r in found.refused] == ["start"]
    assert len(_match(models).supers) == 1


def _sizes() -> list[EditableModel]:
    """The first four rows are common to all; the weights have 32, 48 and 64 values."""
    rows = _weights(4, 8)
    return [
        products(n, [np.vstack([rows, _weights(more, 8)]).astype(np.float32)])
        for n, more in zip("abc", (0, 2, 4), strict=True)
    ]


def test_a_super_operator_is_as_similar_as_its_two_largest_weights() -> None:
    models = _sizes()
    (s,) = _match(models, MergeOptions(tau_ms=math.inf, omega=64 / 112)).supers
    assert len(s.members) == 3 and (s.rows, s.columns) == (4, 8)
    assert s.similarity == 64 / 112  # b and c; a and c: 64 / 96
    found = _match(models, MergeOptions(tau_ms=math.inf, omega=0.6))
    assert _names(found) == [("a/op0", "b/op0")]


def test_the_similarity_of_who_is_refused_is_that_to_the_largest_member() -> None:
    models = _sizes()
    found = match_all(
        models,
        operators(models),
        [(0, 1, 2)],
        ANY,
        can_emit=lambda s: "three" if len(s.members) > 2 else None,
    )
    assert [(r.operators, r.similarity) for r in found.refused] == [(("a/op0", "b/op0", "c/op0"), 64 / 112)]


def test_a_pair_that_would_make_a_cycle_is_not_refused_for_its_start() -> None:
    # An infinite tau would not merge the second pair either, so the report must not say that it would.
    one, two = _weights(4, 4), _weights(4, 4)
    models = [products("a", [one, two], [None, 0]), products("b", [two, one], [None, 0])]
    found = _match(models, MergeOptions(tau_ms=0.1), a_op0=0.0, b_op1=0.0, a_op1=1.0, b_op0=9.0)
    assert _names(found) == [("a/op0", "b/op1")]
    assert found.refused == ()


def test_who_was_refused_and_merged_with_others_is_not_told() -> None:
    w = _weights(8, 8)
    less, low, high = w.copy(), w.copy(), w.copy()
    less[0], low[5:], high[:5] = 7, 5, 3
    models = [
        products("a", [w, less, low], [None, 0, None]),
        products("b", [less, w, high], [None, 0, 1]),
    ]
    found = _match(models, MergeOptions(tau_ms=math.inf, omega=0.3))
    # (a1, b0) is dropped for a cycle with (a0, b1); then both find somebody else.
    assert _names(found) == [("a/op0", "b/op1"), ("a/op1", "b/op2"), ("a/op2", "b/op0")]
    assert found.refused == ()
