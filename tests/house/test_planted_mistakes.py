"""Plant the mistakes that newcomers make and see each caught by the suite that CONTRIBUTING.md names for it.

Each suite is run on a copy of the package with the mistake; with the page's worked example as it stands as well. That
the suites pass without either is what running the tests shows.
"""

from __future__ import annotations

import pytest

from .conftest import HouseCopy
from .test_one_place import add_entry, add_worked_example

pytestmark = pytest.mark.slow

# A wrapper around a rule that is registered already, as the last line of the room's own loading.
WRAPPED_RULE = """
from dataclasses import replace as _replace

from gkestimator.operators.records import OPERATORS as _OPERATORS

_record = _OPERATORS["", "{op_type}"]
_rule = _record.{field}


def _planted(*arguments):
    result = _rule(*arguments)
    return {result}


_OPERATORS["", "{op_type}"] = _replace(_record, {field}=_planted)
"""
TEN_TIMES = "_replace(result, kernels=tuple(_replace(k, flops=10 * k.flops) for k in result.kernels))"
TRANSPOSED = "[t._replace(shape=t.shape[::-1]) for t in result]"


def plant_rule(house: HouseCopy, op_type: str, field: str, result: str) -> None:
    """Append a wrapper around a rule's result to the copy's operators."""
    file = house.package / "operators" / "__init__.py"
    wrapper = WRAPPED_RULE.format(op_type=op_type, field=field, result=result)
    file.write_text(file.read_text(encoding="utf-8") + wrapper, encoding="utf-8")


@pytest.mark.slow
def test_a_wrong_shape_is_caught(house: HouseCopy) -> None:
    plant_rule(house, "Celu", "shape_rule", TRANSPOSED)
    assert "celu" in house.suite("tests/conformance/test_node_cases.py", "-x", status=1)


@pytest.mark.slow
def test_ten_times_the_flops_are_caught(house: HouseCopy) -> None:
    plant_rule(house, "Celu", "lowering_rule", TEN_TIMES)
    assert "celu" in house.suite("tests/lowering/second_count/test_flops.py", status=1)


@pytest.mark.slow
def test_a_collector_that_lies_is_caught(house: HouseCopy) -> None:
    add_worked_example(house, "profiling/collectors/newcomer.py")
    add_entry(house, "profiling/collectors/registry.py")
    suite = ("tests/conformance/test_collectors.py", "-k", "newcomer")
    house.suite(*suite, status=0)
    house.edit("profiling/collectors/newcomer.py", "start_ns=int(start)", "start_ns=1000 * int(start)")
    assert "newcomer" in house.suite(*suite, status=1)


@pytest.mark.slow
def test_a_policy_over_capacity_is_caught(house: HouseCopy) -> None:
    add_worked_example(house, "gkestimator/placement/papers/newcomer.py")
    add_entry(house, "gkestimator/placement/registry.py")
    suite = ("tests/conformance/test_policies.py", "-k", "newcomer", "-x")
    house.suite(*suite, status=0)
    house.edit(
        "placement/papers/newcomer.py",
        "                free.remove(gpu)\n",
        "",
    )
    assert "newcomer" in house.suite(*suite, status=1)


@pytest.mark.slow
def test_an_exporter_with_a_misspelt_key_is_caught(house: HouseCopy) -> None:
    house.edit("exporting/hami.py", "nvidia.com/gpumem", "nvidia.com/gpumen")
    suite = ("tests/conformance/test_exporters.py", "tests/export", "-k", "hami")
    assert "gpume" in house.suite(*suite, status=1)
