"""Rules of plug-ins through the command line: what they read, what they may return, and traits of their operators."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.cli import run
from gkestimator.operators.records import OPERATORS, declare_traits, restore_operators, traits_of

Outcome = tuple[int, str, str]

RULE = """
from gkestimator.lowering import Lowered, lowering_rule
from gkestimator.operators.builders import elementwise_kernel, output_at, tensor_inputs
from gkestimator.operators.registry import TensorType, shape_rule


@lowering_rule("Twice", domain="acme"{traits})
def twice(op, options):
    times = {times}
    kernel = elementwise_kernel("twice", tensor_inputs(op)[:1], (output_at(op),), flops_per_element=times)
    return {result}


@shape_rule("Twice", domain="acme")
def twice_shape(ctx):
    return {types}
"""
GOOD = {
    "traits": "",
    "times": "int(op.inputs[1].value.sum()) if len(op.inputs) > 1 else int(op.attributes['t'].sum())",
    "result": "Lowered(kernels=(kernel,), host_calls=1)",
    "types": "[ctx.types[0]]",
}


@pytest.fixture(autouse=True)
def own_rules_leave() -> Iterator[None]:
    """Rules that a test's plug-in brought are taken back: they are the process's."""
    for built_in in ("gkestimator.lowering", "gkestimator.operators"):
        import_module(built_in)
    before = dict(OPERATORS)
    yield
    restore_operators(before)


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Callable[..., Outcome]:
    def call(model: onnx.ModelProto, *arguments: str, **changes: str) -> Outcome:
        path = tmp_path / "own.onnx"
        # Of a name of its own: a plug-in loads once.
        rules = tmp_path / f"rules{len(list(tmp_path.iterdir()))}.py"
        path.write_bytes(model.SerializeToString())
        rules.write_text(RULE.format(**{**GOOD, **changes}))
        status = run(["estimate", str(path), "--gpu", "T4", "--plugin", str(rules), *arguments])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def chain(*counts: np.ndarray, attribute: bool = False) -> onnx.ModelProto:
    """One acme.Twice after the other, each with its own constant as second input or as attribute ``t``."""
    nodes, weights = [], []
    for place, count in enumerate(counts):
        inputs = [f"x{place}"]
        attributes = {}
        if attribute:
            attributes["t"] = numpy_helper.from_array(count, f"c{place}")
        else:
            inputs.append(f"c{place}")
            weights.append(numpy_helper.from_array(count, f"c{place}"))
        nodes.append(helper.make_node("Twice", inputs, [f"x{place + 1}"], domain="acme", **attributes))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 256]) for name in ("x0", f"x{len(counts)}")
    ]
    graph = helper.make_graph(nodes, "own", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def kernel_flops(outcome: Outcome) -> list[int]:
    status, out, err = outcome
    assert status == 0, err
    rows = csv.DictReader(io.StringIO(out))
    return [int(row["flops"]) for row in rows if "twice" in row["kernel"]]


@pytest.mark.parametrize("counts", [(1, 100), (100, 1)])
@pytest.mark.parametrize("elements", [1, 300])
@pytest.mark.parametrize("attribute", [False, True])
def test_a_rule_that_reads_a_value_gets_its_own_nodes_kernels(
    gkest: Callable[..., Outcome], counts: tuple[int, int], elements: int, attribute: bool
) -> None:
    arrays = []
    for count in counts:
        array = np.zeros(elements, dtype=np.int64)
        array[-1] = count
        arrays.append(array)
    outcome = gkest(chain(*arrays, attribute=attribute), "--kernels", "--format", "csv")
    assert kernel_flops(outcome) == [4 * 256 * count for count in counts]


def test_a_rule_may_read_a_second_value_only_for_some_first_values(gkest: Callable[..., Outcome]) -> None:
    """The second constant counts where the first is 2: results remembered before that was known stay right."""
    model = chain(*(np.array([n]) for n in (1, 2, 2, 1)))
    for place, node in enumerate(model.graph.node):
        node.input.append(f"d{place}")
        model.graph.initializer.append(numpy_helper.from_array(np.array([10 + place]), f"d{place}"))
    times = "int(op.inputs[1].value[0]) if op.inputs[1].value[0] == 1 else int(op.inputs[2].value[0])"
    outcome = gkest(model, "--kernels", "--format", "csv", times=times)
    assert kernel_flops(outcome) == [1024 * n for n in (1, 11, 12, 1)]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("None", "NoneType"),
        ("[kernel]", "expected Lowered"),
        ("Lowered(kernels=[kernel], host_calls=1)", "tuple of Kernel"),
        ("Lowered(kernels=('twice',), host_calls=1)", "expected Kernel"),
        ("Lowered(kernels=(replace(kernel, flops=-1),), host_calls=1)", "flops -1"),
        ("Lowered(kernels=(replace(kernel, flops=float('nan')),), host_calls=1)", "flops nan"),
        ("Lowered(kernels=(replace(kernel, flops=2.5),), host_calls=1)", "flops 2.5"),
        ("Lowered(kernels=(replace(kernel, read_bytes=float('inf')),), host_calls=1)", "read_bytes inf"),
        ("Lowered(kernels=(replace(kernel, write_bytes=-4),), host_calls=1)", "write_bytes -4"),
        ("Lowered(kernels=(replace(kernel, family='twice'),), host_calls=1)", "family 'twice'"),
        (
            "Lowered(kernels=(replace(kernel, element_bytes=float('nan')),), host_calls=1)",
            "element_bytes nan",
        ),
        ("Lowered(kernels=(kernel,), host_calls=-1)", "host_calls -1"),
        ("Lowered(kernels=(kernel,), host_calls=1.5)", "host_calls 1.5"),
        ("Lowered(kernels=(kernel,), host_calls=True)", "host_calls True"),
        ("Lowered(kernels=(), host_calls=0, aliases={0: 2})", "input 2"),
        ("Lowered(kernels=(), host_calls=0, aliases={1: 0})", "output 1"),
        ("Lowered(kernels=(), host_calls=0, aliases={0: -1})", "input -1"),
        ("Lowered(kernels=(), host_calls=0, aliases=[0])", "mapping"),
    ],
)
def test_a_wrong_result_is_one_line_naming_rule_and_file(
    gkest: Callable[..., Outcome], result: str, words: str
) -> None:
    changed = result.replace("replace(", "__import__('dataclasses').replace(")
    status, out, err = gkest(chain(np.array([3])), result=changed)
    assert status == 2 and out == "" and "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("gkest: error: ")]
    assert words in line and "rule twice" in line and "rules0.py" in line and "acme.Twice" in line, line


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ("None", "NoneType"),
        ("ctx.types[0]", "expected a list"),
        ("[(4, 256)]", "expected TensorType"),
        ("[]", "0 types"),
        ("[TensorType(ctx.types[0].dtype, (-4, 256))]", "(-4, 256)"),
        ("[TensorType(ctx.types[0].dtype, (4, 2.5))]", "2.5"),
        ("[TensorType(ctx.types[0].dtype, [4, 256])]", "expected a tuple"),
        ("[TensorType('float', (4, 256))]", "expected a DType"),
    ],
)
def test_wrong_types_are_one_line_naming_rule_and_file(
    gkest: Callable[..., Outcome], types: str, words: str
) -> None:
    status, out, err = gkest(chain(np.array([3])), types=types)
    assert status == 2 and out == "" and "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("gkest: error: ")]
    assert words in line and "rule twice_shape" in line and "rules0.py" in line and "Twice" in line, line


def test_an_operator_in_place_takes_less_memory(gkest: Callable[..., Outcome]) -> None:
    peaks = []
    for traits in ("", ', in_place=("onnxruntime",)'):
        arguments = ("--runtime", "onnxruntime", "--format", "json")
        status, out, err = gkest(chain(*[np.array([3])] * 3), *arguments, traits=traits)
        assert status == 0, err
        (row,) = json.loads(out)["rows"]
        peaks.append(row["activations_bytes"])
        restore_operators({key: record for key, record in OPERATORS.items() if key[0] != "acme"})
    assert peaks[1] < peaks[0], peaks


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        (", in_palce=('torch',)", "no trait 'in_palce'"),
        (", in_place='torch'", "expected a tuple"),
        (", in_place=(1,)", "tuple of str"),
        (", autocast='fp64'", "expected one of widest"),
    ],
)
def test_a_wrong_trait_is_one_line(gkest: Callable[..., Outcome], traits: str, words: str) -> None:
    status, out, err = gkest(chain(np.array([3])), traits=traits)
    assert status == 2 and out == "" and "Traceback" not in err
    assert words in err and "rules0.py" in err, err


def test_a_trait_is_said_once() -> None:
    declare_traits("Twice", domain="acme", host_inputs=(1,))
    declare_traits("Twice", domain="acme", host_inputs=(1,))
    assert traits_of(("acme", "Twice")).host_inputs == (1,)
    with pytest.raises(ValueError, match="host_inputs was"):
        declare_traits("Twice", domain="acme", host_inputs=(2,))
