"""Model-local functions are inlined; standard operators that are functions stay operators."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
from onnx import helper

from gkestimator.core.errors import LimitError, ModelError

NESTED = """<ir_version: 10, opset_import: ["": 21, "my": 1]>
g (float[N,4] x) => (float[N,2,2] y) { y = my.outer<alpha = 0.25>(x) }
<domain: "my", opset_import: ["": 18, "my": 1]>
outer <alpha> (a) => (b) { t = my.inner<alpha: float = @alpha>(a)  s = Constant<value_ints = [0, 2, 2]>()  b = Reshape(t, s) }
<domain: "my", opset_import: ["": 18]>
inner <alpha> (a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }
"""


def test_nested_functions_and_attribute_references(load):
    graph = load(NESTED).bind(batch_size=3)
    assert [o.op_type for o in graph.operators] == ["LeakyRelu", "Reshape"]
    leaky = graph.operators[0]
    assert leaky.attributes["alpha"] == pytest.approx(0.25)
    assert leaky.version == 18, "a function's body has the opsets of the function"
    assert leaky.name.count("/") == 2
    assert graph.outputs[0].shape == (3, 2, 2)
    assert graph.outputs[0].name == "y"


def test_attribute_default_of_a_function(load):
    model = onnx.parser.parse_model(NESTED.replace("<alpha = 0.25>", ""))
    outer = model.functions[0]
    del outer.attribute[:]
    outer.attribute_proto.append(helper.make_attribute("alpha", 0.75))
    graph = load(model).bind(batch_size=1)
    assert graph.operators[0].attributes["alpha"] == pytest.approx(0.75)


def test_standard_function_operators_are_not_inlined(load):
    graph = load(
        "g (float[N,4,8] x, float[4] s, float[4] b) => (float[N,4,8] y) { y = GroupNormalization<num_groups=2>(x, s, b) }"
    ).bind(batch_size=2)
    assert [o.op_type for o in graph.operators] == ["GroupNormalization"]


def _doubling(levels: int) -> onnx.ModelProto:
    functions = []
    for level in range(levels):
        called = "Relu" if level == 0 else f"f{level - 1}"
        domain = "" if level == 0 else "my"
        nodes = [
            helper.make_node(called, ["a"], ["t"], domain=domain),
            helper.make_node(called, ["t"], ["b"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
        functions.append(helper.make_function("my", f"f{level}", ["a"], ["b"], nodes, opsets))
    tensor = [helper.make_tensor_value_info(n, 1, ["N", 4]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="my")], "g", tensor[:1], tensor[1:]
    )
    return helper.make_model(
        graph, functions=functions, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    )


def test_functions_that_double_are_inlined_up_to_the_limit(load):
    assert len(load(_doubling(6)).bind(batch_size=1).operators) == 64
    with pytest.raises(LimitError, match="found 20,001 nodes once functions are inlined"):
        load(_doubling(40))


def test_recursion_is_refused(load):
    model = _doubling(2)
    model.functions[0].node[0].op_type = "f1"
    model.functions[0].node[0].domain = "my"
    with pytest.raises(LimitError, match=r"my\.f\d calls itself"):
        load(model)


def test_call_with_too_many_inputs(load):
    model = _doubling(1)
    model.graph.node[0].input.append("x")
    with pytest.raises(ModelError, match="passes 2 inputs"):
        load(model)


def test_body_that_reads_an_undefined_name(load):
    model = _doubling(1)
    model.functions[0].node[0].input[0] = "ghost"
    with pytest.raises(ModelError, match="ghost"):
        load(model)
