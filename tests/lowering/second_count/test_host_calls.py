"""Hold the host calls of lowering rules to a second count: torch's own dispatcher, and onnxruntime's rule.

For torch ``tests/data/torch_host_calls.json`` holds the ATen calls of ONNX's node tests, recorded on a CPU by
``tests/data/make_torch_host_calls.py``; torch itself is not needed here. For onnxruntime a node is one call, and a
view that the planner resolves is none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from gkestimator.operators.records import OPERATORS, traits_of
from gkestimator.operators.registry import LOWERINGS

from .counting import Key, NodeCase, bound, lowered, node_cases
from .examples import EXAMPLES, node_case
from .kinds import COUNTED_KINDS

pytestmark = pytest.mark.slow

RULE_KINDS = {key: OPERATORS[key].kind for key in LOWERINGS}

RECORDED = Path(__file__).parents[2] / "data" / "torch_host_calls.json"
MOST_CASES = 4  # of one operator
# Names of cases: calls of the rule, why they differ from the recorded ones.
TORCH_DEVIATIONS: dict[str, tuple[int, str]] = {
    "cumprod_1d_exclusive": (1, "the shift by one is not in the rule"),
    "cumprod_1d_reverse": (1, "the two flips are not in the rule"),
    "cumsum_1d_exclusive": (1, "the shift by one is not in the rule"),
    "cumsum_1d_reverse": (1, "the two flips are not in the rule"),
    "hardmax_": (1, "the executor composes what no author writes in torch"),
    "l1normalization": (1, "F.normalize is three calls (norm, clamp, divide); the rule has one kernel"),
    "l2normalization": (1, "F.normalize is three calls (norm, clamp, divide); the rule has one kernel"),
    "lppool_2d": (1, "F.lp_pool2d is eight calls; the rule has one kernel"),
    "lrn": (1, "F.local_response_norm is seven calls; the rule has one kernel"),
    "maxpool_with_argmax": (1, "the executor turns torch's indices into ONNX's; a model uses torch's"),
    "mvn": (1, "the executor composes what no author writes in torch"),
    "prelu_": (1, "a slope for each element has no call in torch; F.prelu's slopes are one a channel"),
    "selu": (1, "torch's constants are the operator's defaults; the cases choose others"),
}
# Operators of counted kinds that are not recorded for torch, and why.
NOT_RECORDED: dict[str, str] = {
    "Affine": "no torch call: exporters of old frameworks alone write it",
    "Det": "torch factorises in a library call of its own",
    "GlobalLpPool": "ONNX has no test of it",
    "OneHot": "the depth of ONNX's tests is no constant, which the executor needs",
    "ParametricSoftplus": "no torch call: exporters of old frameworks alone write it",
    "ScaledTanh": "no torch call: exporters of old frameworks alone write it",
    "SimplifiedLayerNormalization": "written by onnxruntime's optimiser alone",
    "SwiGLU": "no torch call",
}
_QUANTISED_OR_TRAINING = frozenset(["quantize", "dequantize", "optimiser", "window", "determinant"])
# Operators that are no single call in onnxruntime: calls from the number of inputs, and why.
ORT_CALLS: dict[str, tuple[Callable[[int], int], str]] = {
    "Sum": (lambda inputs: max(1, inputs - 1), "one binary kernel after the other"),
    "Max": (lambda inputs: max(1, inputs - 1), "one binary kernel after the other"),
    "Min": (lambda inputs: max(1, inputs - 1), "one binary kernel after the other"),
    "Mean": (lambda inputs: inputs, "one binary kernel after the other, and a division"),
    "Adagrad": (lambda inputs: (inputs - 2) // 3, "one for each parameter"),
    "Adam": (lambda inputs: (inputs - 2) // 4, "one for each parameter"),
    "Momentum": (lambda inputs: (inputs - 2) // 3, "one for each parameter"),
    "CausalConvWithState": (lambda inputs: 2, "the state is joined in front first"),
    "Compress": (lambda inputs: 2, "the host waits for the number of results"),
    "NonMaxSuppression": (lambda inputs: 2, "the host waits for the number of results"),
    "NonZero": (lambda inputs: 2, "the host waits for the number of results"),
    "Unique": (lambda inputs: 2, "the host waits for the number of results"),
    "STFT": (lambda inputs: 2, "frames are cut first"),
    "SoftmaxCrossEntropyLoss": (lambda inputs: 2, "log-softmax and loss are separate launches"),
}
NO_CALL_KINDS = frozenset(["constant", "metadata", "sequence", "view"])
MANY_CALLS_KINDS = frozenset(["control_flow"])  # calls of the body, times the trips


@pytest.fixture(scope="module")
def cases() -> dict[str, NodeCase]:
    """Return ONNX's node tests by name."""
    return {case.name: case for case in node_cases()}


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[str]]:
    """Return the recorded ATen calls by name of the case."""
    calls: dict[str, list[str]] = json.loads(RECORDED.read_text(encoding="utf-8"))["calls"]
    return calls


def _expected_torch(name: str, calls: list[str]) -> int:
    for part, (number, _) in TORCH_DEVIATIONS.items():
        if name.startswith(f"test_{part}"):
            return number
    return len(calls)


def test_torch_s_calls_are_those_that_were_recorded(
    cases: dict[str, NodeCase], recorded: dict[str, list[str]], tmp_path: Path
) -> None:
    complaints = []
    compared = 0
    for name, calls in recorded.items():
        graph = bound(cases[name], tmp_path) if name in cases else None
        if graph is None:  # another release of ONNX has other cases
            continue
        compared += 1
        host_calls = lowered(graph, "torch")[1]
        expected = _expected_torch(name, calls)
        if host_calls != expected:
            complaints.append(
                f"{name}: the rule counts {host_calls} host calls, expected {expected}; torch calls {calls}"
            )
    assert not complaints, "\n" + "\n".join(complaints)
    assert compared >= 200


def test_deviations_are_still_deviations(recorded: dict[str, list[str]]) -> None:
    for part, (number, _) in TORCH_DEVIATIONS.items():
        differing = [
            n for n, calls in recorded.items() if n.startswith(f"test_{part}") and len(calls) != number
        ]
        assert differing, f"{part}: nothing recorded differs from the rule; take it out of TORCH_DEVIATIONS"


def test_every_counted_operator_is_recorded_or_excused(
    cases: dict[str, NodeCase], recorded: dict[str, list[str]]
) -> None:
    seen = {cases[name].key[1] for name in recorded if name in cases}
    missing = [
        op_type
        for (domain, op_type), kind in RULE_KINDS.items()
        if not domain and kind in COUNTED_KINDS - _QUANTISED_OR_TRAINING
        if op_type not in seen and op_type not in NOT_RECORDED
    ]
    assert not missing, (
        f"{sorted(missing)}: no torch calls are recorded; run tests/data/make_torch_host_calls.py (it needs torch), "
        f"or add a reason to NOT_RECORDED in tests/lowering/second_count/test_host_calls.py"
    )
    assert not NOT_RECORDED.keys() & seen


def _expected_onnxruntime(case: NodeCase) -> int:
    kind = RULE_KINDS[case.key]
    if case.key[1] == "Dropout" and len(case.model.graph.node[0].output) > 1:
        return 1  # the mask is filled with ones
    if kind in NO_CALL_KINDS or "onnxruntime" in traits_of(case.key).view_in:
        return 0
    calls = ORT_CALLS.get(case.key[1])
    return 1 if calls is None else calls[0](len(case.inputs))


@pytest.mark.slow
def test_onnxruntime_calls_once_a_node(cases: dict[str, NodeCase], tmp_path: Path) -> None:
    by_operator: dict[Key, list[NodeCase]] = defaultdict(list)
    for case in (*cases.values(), *(node_case(key, example) for key, example in EXAMPLES.items())):
        chosen = by_operator[case.key]
        known = case.key in LOWERINGS and RULE_KINDS[case.key] not in MANY_CALLS_KINDS
        if known and len(chosen) < MOST_CASES:
            chosen.append(case)
    complaints = []
    for case in (case for chosen in by_operator.values() for case in chosen):
        graph = bound(case, tmp_path)
        if graph is None:
            continue
        host_calls, expected = lowered(graph, "onnxruntime")[1], _expected_onnxruntime(case)
        if host_calls != expected:
            complaints.append(f"{case.name}: the rule counts {host_calls} host calls, expected {expected}")
    assert not complaints, "\n" + "\n".join(complaints)
