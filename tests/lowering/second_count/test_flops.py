"""Hold the FLOPs of every elementwise and reduction operator to the arithmetic of a reference that is run.

First source: the lowering rules. Second source: ONNX's reference evaluator, run on arrays that count what is
calculated with them (``counted_numbers``); where the evaluator takes another way than a kernel, or ONNX knows no
such operator, a plain NumPy function (``references``, ``examples``) whose values are those that ONNX stores or
onnxruntime computes. Nobody types in a number of operations here.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gkestimator.lowering import covered_operators
from gkestimator.operators.records import OPERATORS
from gkestimator.operators.registry import LOWERINGS

from .counting import Key, NodeCase, bound, count_reference, lowered, node_cases
from .examples import EXAMPLES, NO_CPU_KERNEL, node_case
from .kinds import COUNTED_KINDS, MOVING_KINDS, OTHER_KINDS
from .references import CASES_LEFT_OUT, REFERENCES

pytestmark = pytest.mark.slow

RULE_KINDS = {key: OPERATORS[key].kind for key in LOWERINGS}

# The two counts may differ by the row's own part (a division, a root) and by operations that a reference writes
# apart and a kernel joins (Celu: 7 and 6). A factor of 2 is always a mistake in one of them.
TOLERANCE = 1.5

# Operators whose documented count differs from the reference on purpose: (least, most) of rule / reference.
DEVIATIONS: dict[Key, tuple[float, float, str]] = {
    ("com.microsoft", "QLinearSoftmax"): (
        0.35,
        0.5,
        "exponentials come from a table of 256, so that nothing is dequantised (qlinear_softmax.cc)",
    ),
}
# Operators of a counted kind that are not counted, and why.
NOT_COUNTED: dict[Key, str] = {
    (
        "gkestimator",
        "Addcmul",
    ): "made by a pattern and in no file; Mul and Add, which it stands for, are counted",
    (
        "gkestimator",
        "Rsqrt",
    ): "made by a pattern and in no file; Sqrt and Reciprocal, which it stands for, are counted",
}
# Moves that calculate: what they calculate on the way.
CALCULATING_MOVES: dict[Key, str] = {
    ("com.microsoft", "QLinearConcat"): "requantises its operands",
    ("com.microsoft", "GatherBlockQuantized"): "dequantises the gathered rows",
}
RUNTIMES = ("torch", "onnxruntime")
LEAST_OPERATORS = 150
MOST_CASES = 8  # of one operator: further ones vary what does not change the count


def _left_out(case: NodeCase) -> bool:
    parts, _ = CASES_LEFT_OUT.get(case.key[1], ((), ""))
    return any(part in case.name for part in parts)


def _complaint(case: NodeCase, runtime: str, flops: int, operations: int) -> str | None:
    low, high, _ = DEVIATIONS.get(case.key, (1 / TOLERANCE, TOLERANCE, ""))
    if operations * low <= flops <= operations * high:
        return None
    rule = LOWERINGS[case.key]
    return (
        f"{case.name}: the rule {rule.__module__.rsplit('.', 1)[1]}.{rule.__name__} counts {flops:,} FLOPs under {runtime}, "
        f"the reference calculates {operations:,} operations, expected a factor from {low:.2f} to {high:.2f}"
    )


@pytest.fixture(scope="module")
def cases() -> dict[Key, list[NodeCase]]:
    """Return ONNX's node tests by operator."""
    collected: dict[Key, list[NodeCase]] = defaultdict(list)
    for case in node_cases():
        collected[case.key].append(case)
    return collected


@pytest.fixture(scope="module")
def counted(
    cases: dict[Key, list[NodeCase]], tmp_path_factory: pytest.TempPathFactory
) -> dict[Key, list[tuple[NodeCase, str, int, int]]]:
    """Return (case, runtime, FLOPs of the rule, operations of the reference) for every operator that has a second count."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("second_count")
    counts: dict[Key, list[tuple[NodeCase, str, int, int]]] = defaultdict(list)

    def add(case: NodeCase, reference: Any) -> None:
        graph = bound(case, folder)
        assert graph is not None, f"{case.name} cannot be bound"
        operations = count_reference(case, reference)
        for runtime in RUNTIMES:
            counts[case.key].append((case, runtime, lowered(graph, runtime)[0], operations))

    for key, of_operator in cases.items():
        if RULE_KINDS.get(key) in COUNTED_KINDS:
            for case in [case for case in of_operator if not _left_out(case)][:MOST_CASES]:
                add(case, REFERENCES.get(key[1]))
    for key, example in EXAMPLES.items():
        add(node_case(key, example), example.reference)
    return counts


def _same_rule_elsewhere(key: Key, counted: dict[Key, Any]) -> bool:
    return any(LOWERINGS[key] is LOWERINGS[other] and key[1] == other[1] for other in counted if other != key)


def test_every_kind_is_counted_or_excused() -> None:
    kinds = set(covered_operators().values())
    unknown = kinds - COUNTED_KINDS - MOVING_KINDS - OTHER_KINDS.keys()
    assert not unknown, (
        f"kinds of rules {sorted(unknown)}: add each to COUNTED_KINDS, or to OTHER_KINDS with a reason, in kinds.py"
    )


@pytest.mark.slow
def test_every_counted_operator_has_a_second_count(counted: dict[Key, Any]) -> None:
    missing = [
        key
        for key, kind in covered_operators().items()
        if kind in COUNTED_KINDS and key not in counted and key not in NOT_COUNTED
        if not _same_rule_elsewhere(key, counted)
    ]
    hints = [
        f"{'.'.join(filter(None, key))}: ONNX has no node test of it; add an Example(inputs, reference) under "
        f"{key} to EXAMPLES in tests/lowering/second_count/examples.py"
        for key in missing
    ]
    assert not hints, "\n".join(hints)
    assert not NOT_COUNTED.keys() & counted.keys(), "counted after all: take them out of NOT_COUNTED"
    print(f"{len(counted)} operators, {sum(map(len, counted.values()))} cases have a second count")
    assert len(counted) >= LEAST_OPERATORS


def test_flops_agree_with_the_second_count(counted: dict[Key, list[tuple[NodeCase, str, int, int]]]) -> None:
    complaints = [
        line
        for of_operator in counted.values()
        for case, runtime, flops, operations in of_operator
        if (line := _complaint(case, runtime, flops, operations)) is not None
    ]
    assert not complaints, "\n" + "\n".join(complaints)


def test_moves_calculate_nothing(cases: dict[Key, list[NodeCase]], tmp_path: Path) -> None:
    seen = 0
    for key, of_operator in cases.items():
        if RULE_KINDS.get(key) not in MOVING_KINDS or key in CALCULATING_MOVES:
            continue
        for case in of_operator[:MOST_CASES]:
            graph = bound(case, tmp_path)
            if graph is not None:
                assert lowered(graph, "onnxruntime")[0] == 0, (
                    f"{case.name}: a move without arithmetic has FLOPs"
                )
                seen += 1
    assert seen >= 100


def test_lists_name_operators_that_exist() -> None:
    names = {name for _, name in LOWERINGS}
    assert not (REFERENCES.keys() | CASES_LEFT_OUT.keys()) - names
    listed = (
        EXAMPLES.keys() | DEVIATIONS.keys() | NOT_COUNTED.keys() | CALCULATING_MOVES.keys() | NO_CPU_KERNEL
    )
    assert not listed - LOWERINGS.keys()
