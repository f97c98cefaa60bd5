"""Infer the types (and small values) of one node's outputs: shape rule, evaluation of known values, a memo of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gkestimator.core.errors import LimitError, ShapeError, UnsupportedOperatorError
from gkestimator.onnx_io.binding.facts import Fact, FactPool, Facts, Types, check_type, foldable
from gkestimator.onnx_io.binding.folding import FOLDERS, TYPE_FOLDERS, KnownInputs
from gkestimator.onnx_io.binding.node_kinds import CONTROL_FLOW
from gkestimator.onnx_io.binding.shape_results import checked_types
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Node
from gkestimator.onnx_io.reading.schemas import concrete_type, infer_by_schema, known_to_onnx
from gkestimator.operators.records import OPERATORS, is_built_in
from gkestimator.operators.registry import (
    SHAPE_RULES,
    DeclaredType,
    SequenceType,
    ShapeContext,
    TensorType,
    ValueType,
)

_MEMO_LIMIT = 400_000
# What a rule raises on inputs that no valid model has (an input too few, an attribute of another type): the
# rules are written for valid nodes, and a file from a stranger must still give one line.
MALFORMED = (IndexError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError)

Inferred = tuple[tuple["Fact | None", ...], bool]


class _Declared(Sequence["DeclaredType | None"]):
    """Hold the declared output types of one node, looked up on demand; remembers that somebody looked."""

    __slots__ = ("_lookup", "_outputs", "used")

    def __init__(self, outputs: Sequence[int], lookup: Callable[[int], DeclaredType | None]) -> None:
        self._outputs = outputs
        self._lookup = lookup
        self.used = False

    def __len__(self) -> int:
        return len(self._outputs)

    def __getitem__(self, index: Any) -> Any:
        self.used = True
        if self._outputs[index] >= 0:
            return self._lookup(self._outputs[index])
        return None


class Inference:
    """Infer nodes of one model; equal nodes on equal inputs are inferred once over all bindings."""

    def __init__(self) -> None:
        self.pool = FactPool()
        self.memo: dict[tuple[int, ...], Inferred] = {}

    def trim(self) -> None:
        """Forget everything remembered when it has grown too large. Only between bindings."""
        if len(self.memo) > _MEMO_LIMIT or self.pool.known_bytes > limits.MAX_KNOWN_BYTES // 2:
            self.memo.clear()
            self.pool.forget()

    def infer(
        self,
        node: Node,
        facts: Facts,
        declared: Callable[[int], DeclaredType | None],
        key: tuple[int, ...] | None = None,
    ) -> Inferred:
        """Return the facts of the outputs, and whether all of them have known values.

        Raises ShapeError, LimitError or UnsupportedOperatorError, each naming the node.
        """
        lookup = _Declared(node.outputs, declared)
        try:
            types = self._types(node, facts, lookup)
            outputs = self._values(node, facts, types)
        except LimitError as e:
            raise LimitError(f"{node}: {e}") from e
        except ShapeError as e:
            raise ShapeError(f"{node}: {e}") from e
        except MALFORMED as e:
            raise ShapeError(f"{node}: its inputs {_shapes(facts)} do not fit the operator ({e})") from e
        known = bool(outputs) and all(f is None or f.value is not None for f in outputs)
        result = (outputs, known)
        if key is not None and not lookup.used:
            self.memo[key] = result
        return result

    def _types(self, node: Node, facts: Facts, declared: _Declared) -> list[ValueType | None]:
        results = _ruled_types(node, facts, declared)
        if results is None:
            results = _all_declared(node, declared)
        if len(results) < len(node.outputs):
            raise ShapeError(f"has {len(node.outputs)} outputs; the operator gives {len(results)}")
        bounded = any(_is_bounded(f) for f in facts)
        types: list[ValueType | None] = []
        for slot, type_ in zip(node.outputs, results, strict=False):
            if slot < 0:
                types.append(None)
                continue
            if type_ is None:
                raise ShapeError("the type of an output cannot be told")
            type_ = check_type(type_)
            if bounded and not type_.bounded and not _is_single(type_):
                type_ = type_._replace(bounded=True)
            types.append(type_)
        return types

    def _values(self, node: Node, facts: Facts, types: list[ValueType | None]) -> tuple[Fact | None, ...]:
        intern = self.pool.intern
        values = None
        if all(t is None or foldable(t) for t in types):
            values = _evaluated(node, facts, types)
        outputs: list[Fact | None] = []
        for index, type_ in enumerate(types):
            if type_ is None:
                outputs.append(None)
            elif values is None:
                outputs.append(intern(type_))
            else:
                outputs.append(intern(type_, _matching(type_, values[index])))
        return tuple(outputs)


def _type_of(fact: Fact | None) -> ValueType | None:
    if fact is None:
        return None
    return fact.type


def _value_of(fact: Fact | None) -> Any:
    if fact is None:
        return None
    return fact.value


def _ruled_types(node: Node, facts: Facts, declared: _Declared) -> Types | None:
    """Return what the operator's shape rule says, else what onnx's schema says; None where neither is known."""
    values = [_value_of(f) for f in facts]
    context = ShapeContext(
        op_type=node.op_type,
        domain=node.domain,
        version=node.version,
        attributes=node.attributes,
        types=[_type_of(f) for f in facts],
        values=[v if isinstance(v, np.ndarray) else None for v in values],
        outputs=len(node.outputs),
        declared=declared,
    )
    record = OPERATORS.get((node.domain, node.op_type))
    if record is not None and record.shape_rule is not None:
        rule = record.shape_rule
        types: Types | None = rule(context)
        if is_built_in(rule):
            return types
        return checked_types(rule, types, len(node.outputs))
    if known_to_onnx(node.domain, node.op_type, node.version):
        return infer_by_schema(context)
    return None


def _evaluated(node: Node, facts: Facts, types: list[ValueType | None]) -> Sequence[Any] | None:
    """Return the values of all outputs, None where they cannot be told."""
    key = (node.domain, node.op_type)
    from_types = TYPE_FOLDERS.get(key)
    if from_types is not None:
        value = from_types(node.attributes, [_type_of(f) for f in facts])
    else:
        evaluate = FOLDERS.get(key)
        if evaluate is None or any(f is not None and f.value is None for f in facts):
            return None
        with np.errstate(all="ignore"):
            value = evaluate(KnownInputs(node.attributes, [_value_of(f) for f in facts], node.version, types))
    if value is None or isinstance(value, list):
        return value
    return [value]


def _matching(type_: ValueType, value: Any) -> Any:
    """Return an evaluated value if it has the shape that the rule inferred: evaluators never overrule rules."""
    if isinstance(type_, SequenceType):
        if isinstance(value, tuple) and len(value) == len(type_.elements):
            return value
        return None
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    if array.shape == type_.shape:
        return np.ascontiguousarray(array).reshape(array.shape)
    return None


def _is_bounded(fact: Fact | None) -> bool:
    return fact is not None and fact.type.bounded


def _is_single(type_: ValueType) -> bool:
    return isinstance(type_, TensorType) and all(d == 1 for d in type_.shape)


def unknown_operators(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the operator types, subgraphs' included, that have neither a rule here nor a schema in onnx; sorted."""
    titles: set[str] = set()
    for node in nodes:
        for block in (node.blocks or {}).values():
            titles.update(unknown_operators(block.nodes))
        if node.kind == CONTROL_FLOW or (node.domain, node.op_type) in SHAPE_RULES:
            continue
        if not known_to_onnx(node.domain, node.op_type, node.version):
            titles.add(_title(node))
    return tuple(sorted(titles))


def _title(node: Node) -> str:
    if node.domain:
        return f"{node.domain}.{node.op_type}"
    return node.op_type


def _all_declared(node: Node, declared: _Declared) -> list[ValueType | None]:
    """Return what the file says of the outputs, as a last resort; UnsupportedOperatorError if too little."""
    types: list[ValueType | None] = []
    for index, slot in enumerate(node.outputs):
        if slot < 0:
            types.append(None)
            continue
        said = declared[index]
        if said is None:
            type_ = None
        else:
            type_ = concrete_type(said)
        if type_ is None:
            title = _title(node)
            raise UnsupportedOperatorError(
                f"{node}: no rule knows operator {title} and the file does not declare its output shapes",
                operators=(title,),
            )
        types.append(type_)
    return types


def _shapes(facts: Facts) -> str:
    parts = []
    for fact in facts:
        if fact is None:
            parts.append("omitted")
        elif isinstance(fact.type, SequenceType):
            parts.append(f"sequence of {len(fact.type.elements)}")
        else:
            parts.append(f"{fact.type.dtype}{list(fact.type.shape)}")
    return ", ".join(parts) or "none"
