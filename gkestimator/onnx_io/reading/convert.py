"""Convert a ModelProto to a Program: functions inlined, names numbered, nodes in an order that can be executed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import onnx

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import LimitError, ModelError
from gkestimator.core.escaping import printable
from gkestimator.core.limits import exceeded
from gkestimator.onnx_io.binding.node_kinds import node_kind
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.attributes import attribute_key, convert_attributes
from gkestimator.onnx_io.reading.declared import DeclaredTypes, absent_weights
from gkestimator.onnx_io.reading.names import distinct_label
from gkestimator.onnx_io.reading.ordering import executable_order
from gkestimator.onnx_io.reading.program import OMITTED, Block, Constant, InputSpec, Node, Program
from gkestimator.onnx_io.reading.schemas import check_tensor_attributes
from gkestimator.onnx_io.reading.tensors import (
    constant,
    declared_type,
    plain_constant,
    sparse_constant,
    value_kind,
)
from gkestimator.operators.registry import TensorType

_NO_ATTRIBUTES: Mapping[str, onnx.AttributeProto] = {}


def _domain(name: str) -> str:
    if name == "ai.onnx":
        return ""
    return name


class _UnresolvedError(Exception):
    """Say that a node reads a name that is not defined (yet); caught where nodes can still be reordered."""

    def __init__(self, name: str, reader: str) -> None:
        super().__init__(name)
        self.name = name
        self.reader = reader


class _Scope:
    """Hold the names visible in one graph or function body, and those of the graph around it."""

    __slots__ = ("given", "opsets", "outer", "prefix", "slots")

    def __init__(
        self,
        outer: _Scope | None,
        prefix: str,
        opsets: Mapping[str, int],
        given: Mapping[str, onnx.AttributeProto] = _NO_ATTRIBUTES,
    ) -> None:
        self.slots: dict[str, int] = {}
        self.outer = outer
        self.prefix = prefix
        self.opsets = opsets
        self.given = given

    def find(self, name: str) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            slot = scope.slots.get(name)
            if slot is not None:
                return slot
            scope = scope.outer
        return None


class _Converter:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.main: _Scope | None = None
        self.missing: Mapping[str, TensorType] | None = None  # found when the first name is not defined
        self.names: list[str] = []
        self.used: set[str] = set()
        self.constants: dict[int, Any] = {}
        self.count = 0
        written = len(model.graph.node) + sum(len(f.node) for f in model.functions)
        self.bound, self.most = limits.expanded(written, "nodes", "expanded_nodes")
        self.edges = limits.BoundedCount("edges")
        self.items = limits.BoundedCount("attribute_items")
        self.characters = limits.BoundedCount("name_characters")
        self.known_bytes = 0
        self.constant_nodes = 0
        self.node_names: set[str] = set()
        self.signatures: dict[Hashable, int] = {}
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.calls: list[tuple[str, str, str]] = []
        self.depth = 0

    def slot(self, name: str) -> int:
        name = self.shortened(name)
        if name in self.used:
            name = f"{name}#{len(self.names)}"  # a storage name must mean one value
        self.used.add(name)
        self.names.append(name)
        return len(self.names) - 1

    def shortened(self, name: str) -> str:
        """Return a name without its end where it is very long: every trip of an unrolled loop has names of its own."""
        name = name[: limits.MAX_NAME]
        self.characters.add(len(name))
        return name

    def keep(self, constant: Constant) -> Constant:
        """Return a constant, without its value where those before it, in functions too, take too much."""
        value = constant.value
        if value is None:
            return constant
        size = value.nbytes
        if value.dtype == object:
            size += sum(map(len, value.flat))
        if size > limits.MAX_SMALL:
            self.known_bytes += size
            if self.known_bytes > limits.MAX_KNOWN_BYTES:
                return Constant(constant.type, None)
        return constant

    def define(self, scope: _Scope, name: str, what: str) -> int:
        if name in scope.slots:
            raise ModelError(f"tensor {name!r} is defined twice, the second time by {what}")
        slot = self.slot(scope.prefix + name)
        scope.slots[name] = slot
        return slot

    def initializers(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        groups = (graph.initializer, graph.sparse_initializer, graph.input, graph.output)
        limits.check("tensors", sum(map(len, groups)))
        for tensor in graph.initializer:
            what = f"initializer {tensor.name!r}"
            self.constants[self.define(scope, tensor.name, what)] = self.keep(constant(tensor, what))
        for sparse in graph.sparse_initializer:
            what = f"sparse initializer {sparse.values.name!r}"
            self.constants[self.define(scope, sparse.values.name, what)] = sparse_constant(sparse, what)

    def absent_weight(self, name: str, scope: _Scope) -> int | None:
        """Return the slot of a weight that the file declares and does not hold; None where ``name`` is no such."""
        while scope.outer is not None:
            scope = scope.outer
        if scope is not self.main:  # a function's body, where nothing is declared
            return None
        if self.missing is None:
            self.missing = absent_weights(self.graph)
        kind = self.missing.get(name)
        if kind is None:
            return None
        slot = self.define(scope, name, f"the declaration of {name!r}")
        self.constants[slot] = Constant(kind, None)
        return slot

    def nodes(self, protos: Sequence[onnx.NodeProto], scope: _Scope, out: list[Node]) -> None:
        """Convert ``protos``.

        When one reads what is defined later, bring the rest into an executable order.
        """
        pending: Iterable[onnx.NodeProto] = protos
        done = 0
        for attempt in range(2):
            try:
                for proto in pending:
                    self.node(proto, scope, out)
                    done += 1
                return
            except _UnresolvedError as e:
                rest = list(pending)[done:]
                if attempt or (scope.outer is not None and not any(e.name in p.output for p in rest)):
                    raise  # perhaps a graph around this one defines it later
                pending = executable_order(rest, lambda name: scope.find(name) is not None)
                done = 0

    def node(self, proto: onnx.NodeProto, scope: _Scope, out: list[Node]) -> None:
        """Append a node; a call of a model-local function is inlined, a Constant becomes a constant."""
        op_type = proto.op_type
        domain = proto.domain
        if domain == "ai.onnx":
            domain = ""
        if type(op_type) is not str or type(domain) is not str:
            raise ModelError(f"node {self.count} has a type that is not UTF-8 text")
        self.count += 1
        if self.count > self.most:
            raise LimitError(exceeded(self.bound, self.count))
        self.edges.add(len(proto.input) + len(proto.output))
        inputs = self.inputs(proto, scope)
        if self.functions and (domain, op_type, proto.overload) in self.functions:
            self.call((domain, op_type, proto.overload), proto, inputs, scope, out)
        elif op_type == "Constant" and not domain:
            self.constant_node(proto, scope)
        else:
            self.operator(proto, domain, inputs, scope, out)

    def inputs(self, proto: onnx.NodeProto, scope: _Scope) -> list[int]:
        """Return the slots that a node reads."""
        slots = []
        find = scope.find
        for name in proto.input:
            if not name:
                slots.append(OMITTED)
                continue
            slot = find(name)
            if slot is None:
                slot = self.absent_weight(name, scope)
            if slot is None:
                raise _UnresolvedError(name, proto.name or proto.op_type)
            slots.append(slot)
        return slots

    def label(self, proto: onnx.NodeProto, scope: _Scope) -> str:
        """Return a name for a node that no other has."""
        name = proto.name or f"{proto.op_type}#{self.count - 1}"
        return distinct_label(printable(self.shortened(scope.prefix + name)), self.node_names)

    def operator(
        self, proto: onnx.NodeProto, domain: str, inputs: list[int], scope: _Scope, out: list[Node]
    ) -> None:
        """Append a node that is an operator."""
        op_type = proto.op_type
        label = self.label(proto, scope)
        attributes: dict[str, Any] = {}
        blocks = None
        if len(proto.attribute):
            what = f"node {label}"
            attributes, graphs, tensors = convert_attributes(proto.attribute, what, self.items, scope.given)
            if tensors:
                check_tensor_attributes(domain, op_type, tensors, what)
            if graphs:
                blocks = {name: self.block(graph, scope, f"{label}/") for name, graph in graphs.items()}
        outputs = self.written(proto, label, scope)
        while inputs and inputs[-1] == OMITTED:
            inputs.pop()
        version = scope.opsets.get(domain, 1)
        # Alike are nodes that a shape rule cannot tell apart: whether two inputs are one tensor counts, not which.
        values: tuple[Hashable, ...] = ()
        if attributes:
            values = tuple([(k, attribute_key(v)) for k, v in attributes.items()])
        shared: tuple[int, ...] = ()
        if len(inputs) > len(set(inputs)):
            shared = tuple(map(inputs.index, inputs))
        omitted = OMITTED in outputs and outputs
        alike = (domain, op_type, version, len(inputs), omitted, len(outputs), values, shared)
        node = Node(
            self.count - 1,
            label,
            domain,
            op_type,
            version,
            attributes,
            tuple(inputs),
            outputs,
            self.signatures.setdefault(alike, len(self.signatures)),
            blocks,
            node_kind(domain, op_type),
        )
        out.append(node)

    def written(self, proto: onnx.NodeProto, label: str, scope: _Scope) -> tuple[int, ...]:
        """Return the slots that a node writes; outputs left out at the end are dropped."""
        names = list(proto.output)
        while names and not names[-1]:
            names.pop()
        return tuple([self.define(scope, name, f"node {label}") if name else OMITTED for name in names])

    def constant_node(self, proto: onnx.NodeProto, scope: _Scope) -> None:
        what = f"node {scope.prefix}{proto.name or f'Constant#{self.count - 1}'}"
        if not len(proto.output):
            return  # nothing can read it
        slot = self.define(scope, proto.output[0], what)
        self.constant_nodes += 1
        attributes, _, tensors = convert_attributes(proto.attribute, what, self.items, scope.given)
        if tensors:
            self.constants[slot] = self.keep(next(iter(tensors.values())))
            return
        for name, value in attributes.items():
            if name in _CONSTANT_TYPES:
                self.constants[slot] = plain_constant(value, _CONSTANT_TYPES[name], what)
                return
        raise ModelError(f"{what} (Constant) has no value")

    def call(
        self,
        key: tuple[str, str, str],
        proto: onnx.NodeProto,
        inputs: list[int],
        scope: _Scope,
        out: list[Node],
    ) -> None:
        """Inline a call of a model-local function."""
        function = self.functions[key]
        title = f"{key[0] or 'ai.onnx'}.{key[1]}"
        if key in self.calls:
            raise LimitError(f"function {title} calls itself")
        if len(self.calls) >= limits.MAX_FUNCTION_DEPTH:
            raise LimitError(
                f"functions call each other more than {limits.MAX_FUNCTION_DEPTH} deep, at {title}"
            )
        label = self.label(proto, scope)
        if len(inputs) > len(function.input) or len(proto.output) > len(function.output):
            raise ModelError(
                f"node {label} passes {len(inputs)} inputs and {len(proto.output)} outputs to function "
                f"{title}, which has {len(function.input)} and {len(function.output)}"
            )
        listed = (
            function.input,
            function.output,
            function.attribute_proto,
            function.opset_import,
            scope.opsets,
        )
        self.edges.add(sum(map(len, listed)))
        opsets = {_domain(o.domain): o.version for o in function.opset_import}
        given = _passed(function, proto, scope)
        inner = _Scope(None, f"{label}/", {**scope.opsets, **opsets}, given)
        # an input left out is an empty name inside; OMITTED is what find() then answers
        inner.slots = dict.fromkeys(function.input, OMITTED)
        inner.slots.update(zip(function.input, inputs, strict=False))
        self.calls.append(key)
        first = len(self.names)
        try:
            self.nodes(function.node, inner, out)
        except _UnresolvedError as e:
            raise ModelError(
                f"function {title}: node {e.reader} reads {e.name!r}, which nothing defines"
            ) from e
        finally:
            self.calls.pop()
        for name, formal in zip(proto.output, function.output, strict=False):
            if not name:
                continue
            slot = inner.slots.get(formal, OMITTED)
            if slot == OMITTED:
                raise ModelError(f"function {title} does not define its output {formal!r}")
            if name in scope.slots:
                raise ModelError(f"tensor {name!r} is defined twice, the second time by node {label}")
            scope.slots[name] = slot
            outer_name = scope.prefix + name
            if slot >= first and outer_name not in self.used:
                self.names[slot] = outer_name
                self.used.add(outer_name)

    def block(self, graph: onnx.GraphProto, outer: _Scope, prefix: str) -> Block:
        """Convert a subgraph."""
        if self.depth >= limits.MAX_SUBGRAPH_DEPTH:
            raise LimitError(f"subgraphs nested more than {limits.MAX_SUBGRAPH_DEPTH} deep")
        self.depth += 1
        try:
            scope = _Scope(outer, prefix, outer.opsets, outer.given)
            self.initializers(graph, scope)
            inputs = tuple(self.define(scope, i.name, f"subgraph of {prefix}") for i in graph.input)
            nodes: list[Node] = []
            self.nodes(graph.node, scope, nodes)
            return Block(inputs, self.outputs(graph, scope, f"subgraph of {prefix[:-1]}"), nodes)
        finally:
            self.depth -= 1

    def outputs(self, graph: onnx.GraphProto, scope: _Scope, what: str) -> tuple[int, ...]:
        slots = []
        for output in graph.output:
            slot = scope.find(output.name)
            if slot is None:
                raise ModelError(f"output {output.name!r} of the {what} is defined by no node")
            slots.append(slot)
        return tuple(slots)


def _passed(
    function: onnx.FunctionProto, call: onnx.NodeProto, scope: _Scope
) -> dict[str, onnx.AttributeProto]:
    """Return the attributes inside a function: its defaults, and what the call passes."""
    given = {a.name: a for a in function.attribute_proto}
    for attribute in call.attribute:
        if not attribute.ref_attr_name:
            given[attribute.name] = attribute
        elif attribute.ref_attr_name in scope.given:
            given[attribute.name] = scope.given[attribute.ref_attr_name]
    return given


_CONSTANT_TYPES = {
    "value_float": DType.FLOAT,
    "value_floats": DType.FLOAT,
    "value_int": DType.INT64,
    "value_ints": DType.INT64,
    "value_string": DType.STRING,
    "value_strings": DType.STRING,
}


def _inputs(converter: _Converter, graph: onnx.GraphProto, scope: _Scope) -> tuple[InputSpec, ...]:
    specs = []
    for proto in graph.input:
        if proto.name in scope.slots:
            if scope.slots[proto.name] in converter.constants:
                continue  # before IR version 4 initializers had to be listed as inputs too
            raise ModelError(f"input {proto.name!r} is declared twice")
        kind, tensor = value_kind(proto.type)
        if kind == "other":
            raise ModelError(
                f"input {proto.name!r} is neither a tensor nor a sequence or optional of tensors"
            )
        slot = converter.define(scope, proto.name, f"input {proto.name}")
        specs.append(InputSpec(slot, proto.name, kind, declared_type(tensor, f"input {proto.name!r}")))
    return tuple(specs)


def convert_model(model: onnx.ModelProto) -> Program:
    """Convert a whole model. Raises ModelError or LimitError; messages do not name the file.

    A tensor that nothing defines is taken for a weight where the file declares its type and shape.
    """
    graph = model.graph
    opsets = {_domain(o.domain): o.version for o in model.opset_import}
    for domain, version in opsets.items():
        if not 0 < version < 1 << 31:
            raise ModelError(
                f"opset {version} of domain {domain or 'ai.onnx'}; a positive number was expected"
            )
    converter = _Converter(model)
    scope = _Scope(None, "", opsets or {"": 1})
    converter.main = scope
    converter.initializers(graph, scope)
    inputs = _inputs(converter, graph, scope)
    nodes: list[Node] = []
    try:
        converter.nodes(graph.node, scope, nodes)
    except _UnresolvedError as e:
        raise ModelError(f"node {e.reader} reads tensor {e.name!r}, which nothing defines") from e
    block = Block(tuple(i.slot for i in inputs), converter.outputs(graph, scope, "graph"), nodes)
    return Program(
        producer=" ".join(t for t in (model.producer_name, model.producer_version) if t),
        names=converter.names,
        constants=converter.constants,
        inputs=inputs,
        output_names=tuple(o.name for o in graph.output),
        main=block,
        nodes=converter.count,
        opset=opsets.get(""),
        constant_nodes=converter.constant_nodes,
        declared=DeclaredTypes(graph),
    )
