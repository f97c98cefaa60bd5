"""Every rule of lifting: one node for both branches where that is sound, two where it is not; same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import branches
import more_ways  # noqa: F401
from ways import CASES

from gkestimator.merging.lifting.rules import RULES


def compare(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Equal up to the order of sums in other kernels."""
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value.dtype == wanted[name].dtype
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", sorted(CASES))
def test_rule(name: str, symbolic: bool, tmp_path: Path) -> None:
    case = CASES[name]
    if symbolic and not case.symbolic:
        pytest.skip("holds for these batches alone")
    options = {"symbolic": symbolic, "opset": case.opset}
    model, feeds = branches.graph(case.way, case.dims, batches=case.batches, **options)
    runs = [feeds]
    if symbolic:
        runs.append(branches.graph(case.way, case.dims, batches=case.again, **options)[1])
    lifted = branches.lifted(model, runs, tmp_path)
    assert branches.count(lifted, case.op) == case.expected(symbolic)
    for feed in runs:
        compare(branches.originals(model, feed), branches.results(lifted.model, feed, tmp_path))


def test_every_rule_has_a_case() -> None:
    """Operators that have none share their rule's function with one that has."""
    without = {op for _, op in RULES} - {c.op for c in CASES.values()}
    tested = {RULES[key] for key in RULES if key[1] in {c.op for c in CASES.values()}}
    own = sorted(
        {op for key, rule in RULES.items() for op in [key[1]] if op in without and rule not in tested}
    )
    assert own == []
