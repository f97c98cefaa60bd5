"""Hold fragments: one operator, or one pattern of a few, with concrete shapes, as plans and kernel datasets hold it.

A fragment is plain data, so it can be stored as JSON, rebuilt as an ONNX file (``onnx_io.fragment_models``), run by
an executor and lowered by the same rules as a whole model.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError
from gkestimator.core.escaping import is_line
from gkestimator.core.records import frozen
from gkestimator.core.texts import parse_json
from gkestimator.core.values import is_list, is_whole

JsonAttribute: TypeAlias = "int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]"
FILLS = ("normal", "positive", "index", "mask", "value")
"""What a tensor is filled with: normal(0, 1) samples; uniform samples from (0.5, 1.5); whole numbers from 0 up to
(not including) ``below``; booleans, or 0 and 1, at random; the numbers of ``values``. Never all zeros."""
MODEL_PREFIX = "model:"
"""What the pattern of a whole model begins with; its name follows, as far as a pattern may hold it."""
_MOST_NODES = 64
_MOST_TENSORS = 128
_MOST_VALUES = 4096
_MOST_RANK = 8
_MOST_TEXT = 200
_MOST_NODES_OF_A_MODEL = 20_000
_MOST_TENSORS_OF_A_MODEL = 40_000
_MOST_ELEMENTS = 2**33
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,99}\Z")
_ROLES = ("input", "weight", "constant")


@frozen
class FragmentTensor:
    """Hold a tensor that goes into a fragment.

    ``role``: ``input`` (an activation), ``weight`` (an initialiser whose values do not matter) or ``constant`` (an
    initialiser whose ``values``, flat and in C order, decide what is calculated: shapes, axes, scales). ``fill``: one
    of :data:`FILLS`; ``below`` bounds ``index``.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    role: str = "input"
    fill: str = "normal"
    below: int | None = None
    values: tuple[float | int | bool, ...] | None = None

    @property
    def elements(self) -> int:
        """Return the number of elements (1 for a scalar)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes in memory."""
        return self.dtype.nbytes(self.elements)


@frozen
class FragmentNode:
    """Hold one ONNX node; an omitted optional input is an empty name."""

    op_type: str
    domain: str
    attributes: Mapping[str, JsonAttribute]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@frozen
class Fragment:
    """Hold nodes in execution order, the tensors that go in, the names of those that come out, and opset versions by
    domain. ``pattern`` names what the nodes are together (``gelu``, ``layer_norm``, ..., ``model:resnet50`` for a whole
    model); empty for a single node."""

    opsets: Mapping[str, int]
    nodes: tuple[FragmentNode, ...]
    tensors: tuple[FragmentTensor, ...]
    outputs: tuple[str, ...]
    pattern: str = ""

    @property
    def op_type(self) -> str:
        """Return the pattern's name, or the type of the only node."""
        return self.pattern or self.nodes[0].op_type

    @property
    def is_model(self) -> bool:
        """Return whether the fragment is a whole model."""
        return self.pattern.startswith(MODEL_PREFIX)

    @property
    def op_domain(self) -> str:
        """Return the domain of the only node; ``pattern`` where the fragment is one."""
        if self.pattern:
            return "pattern"
        return self.nodes[0].domain

    def document(self) -> dict[str, Any]:
        """Return the fragment as JSON values, defaults left out."""
        document: dict[str, Any] = {
            "opsets": dict(sorted(self.opsets.items())),
            "nodes": [_node_document(node) for node in self.nodes],
            "tensors": [_tensor_document(tensor) for tensor in self.tensors],
            "outputs": list(self.outputs),
        }
        if self.pattern:
            document["pattern"] = self.pattern
        return document

    def text(self) -> str:
        """Return the fragment as one line of canonical JSON: equal fragments give equal texts."""
        return json.dumps(self.document(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def digest(self) -> str:
        """Return 16 hexadecimal digits that name the fragment's content."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str, *, where: str) -> Fragment:
        """Return the fragment that :meth:`text` wrote. Raises ModelError as :meth:`from_document`."""
        try:
            document = parse_json(text)
        except ValueError as e:
            raise ModelError(f"{where}: not a fragment in JSON: {e}") from e
        return cls.from_document(document, where=where)

    @classmethod
    def from_document(cls, document: Any, *, where: str) -> Fragment:
        """Return the fragment that JSON values describe, checked as a stranger's. Raises ModelError in one line that
        names ``where``, the field, what was found and what was expected."""
        take = _Checked(where)
        take.keys(document, "fragment", {"opsets", "nodes", "tensors", "outputs"}, {"pattern"})
        opsets = document["opsets"]
        take.opsets(opsets)
        pattern = document.get("pattern", "")
        if not isinstance(pattern, str) or (pattern and not _NAME.match(pattern)):
            raise take.fail("pattern", pattern, "a name")
        most_nodes = _MOST_NODES
        most_tensors = _MOST_TENSORS
        if pattern.startswith(MODEL_PREFIX):
            most_nodes = _MOST_NODES_OF_A_MODEL
            most_tensors = _MOST_TENSORS_OF_A_MODEL
        listed = take.list(document["tensors"], "tensors", most_tensors)
        tensors = tuple(take.tensor(entry, f"tensors[{i}]") for i, entry in enumerate(listed))
        listed = take.list(document["nodes"], "nodes", most_nodes)
        nodes = tuple(take.node(entry, f"nodes[{i}]") for i, entry in enumerate(listed))
        outputs = take.names(document["outputs"], "outputs")
        written = take.wiring(tensors, nodes)
        if not nodes or not outputs or not written.issuperset(outputs):
            raise take.fail("outputs", list(outputs), "names that the nodes write, and at least one node")
        return cls(opsets=opsets, nodes=nodes, tensors=tensors, outputs=outputs, pattern=pattern)


def _tensor_document(tensor: FragmentTensor) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype.value, "shape": list(tensor.shape)}
    if tensor.role != "input":
        entry["role"] = tensor.role
    if tensor.fill != "normal":
        entry["fill"] = tensor.fill
    if tensor.below is not None:
        entry["below"] = tensor.below
    if tensor.values is not None:
        entry["values"] = list(tensor.values)
    return entry


def _node_document(node: FragmentNode) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "op_type": node.op_type,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
    }
    if node.domain:
        entry["domain"] = node.domain
    attributes: dict[str, Any] = {}
    for name, value in sorted(node.attributes.items()):
        if isinstance(value, tuple):
            attributes[name] = list(value)
        else:
            attributes[name] = value
    if attributes:
        entry["attributes"] = attributes
    return entry


class _Checked:
    """Take a stranger's JSON apart, refusing what does not fit."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, field: str, value: object, expected: str) -> ModelError:
        shown = repr(value)
        if isinstance(value, dict | list):
            shown = f"a {type(value).__name__} of {len(value)}"
        return ModelError(f"{self.where}: {field}: found {shown[:80]}, expected {expected}")

    def keys(self, entry: Any, field: str, needed: set[str], optional: set[str]) -> None:
        if not isinstance(entry, dict):
            raise self.fail(field, type(entry).__name__, "an object")
        for key in sorted(needed - entry.keys()):
            raise self.fail(field, f"no {key}", f"the keys {', '.join(sorted(needed))}")
        known = needed | optional
        for key in sorted(entry.keys() - known):
            raise self.fail(field, key, f"only the keys {', '.join(sorted(known))}")

    def list(self, items: Any, field: str, most: int) -> list[Any]:
        if not isinstance(items, list) or len(items) > most:
            raise self.fail(field, items, f"a list of at most {most}")
        return items

    def text(self, text: Any, field: str) -> str:
        if not is_line(text, _MOST_TEXT):
            raise self.fail(field, text, f"a printable text of at most {_MOST_TEXT} characters")
        return text

    def name(self, name: Any, field: str) -> str:
        if not isinstance(name, str) or not _NAME.match(name):
            raise self.fail(field, name, "a name of letters, digits and _ . : / -")
        return name

    def names(self, items: Any, field: str, *, omitted: bool = False) -> tuple[str, ...]:
        """Take a list of names; ``omitted``: an empty one stands for what is left out."""
        names = []
        for name in self.list(items, field, _MOST_TENSORS):
            if not omitted or name != "":
                self.name(name, field)
            names.append(name)
        return tuple(names)

    def opsets(self, opsets: Any) -> None:
        fits = isinstance(opsets, dict) and 1 <= len(opsets) <= 8
        if not fits or not all(is_whole(version, 1, 1000) for version in opsets.values()):
            raise self.fail("opsets", opsets, "an object of 1 to 8 whole numbers by domain")
        for domain in opsets:
            self.text(domain, "opsets")

    def wiring(self, tensors: tuple[FragmentTensor, ...], nodes: tuple[FragmentNode, ...]) -> set[str]:
        """Return every name that is given or written; each is so once, and before it is read."""
        known = {tensor.name for tensor in tensors}
        if len(known) != len(tensors):
            raise self.fail("tensors", "a name twice", "distinct names")
        for i, node in enumerate(nodes):
            for name in node.inputs:
                if name and name not in known:
                    raise self.fail(f"nodes[{i}].inputs", name, "a tensor, or an output of an earlier node")
            for name in node.outputs:
                if name and name in known:
                    raise self.fail(f"nodes[{i}].outputs", name, "a new name")
            known.update(filter(None, node.outputs))
        return known

    def tensor(self, entry: Any, at: str) -> FragmentTensor:
        self.keys(entry, at, {"name", "dtype", "shape"}, {"role", "fill", "below", "values"})
        try:
            dtype = DType(entry["dtype"])
        except ValueError as e:
            raise self.fail(f"{at}.dtype", entry["dtype"], "an ONNX element type in lower case") from e
        shape = self.shape(entry["shape"], f"{at}.shape")
        role = entry.get("role", "input")
        if role not in _ROLES:
            raise self.fail(f"{at}.role", role, " or ".join(_ROLES))
        fill = entry.get("fill", "normal")
        if fill not in FILLS:
            raise self.fail(f"{at}.fill", fill, " or ".join(FILLS))
        below = entry.get("below")
        if (fill == "index") != (below is not None):
            raise self.fail(f"{at}.below", below, "a whole number for fill index, and for no other")
        if below is not None and not is_whole(below, 1, 2**31 - 1):
            raise self.fail(f"{at}.below", below, "a whole number from 1")
        values = entry.get("values")
        if (fill == "value") != (values is not None):
            raise self.fail(f"{at}.values", values, "numbers for fill value, and for no other")
        if values is not None:
            values = self.values(values, math.prod(shape), f"{at}.values")
        name = self.name(entry["name"], f"{at}.name")
        return FragmentTensor(
            name=name, dtype=dtype, shape=shape, role=role, fill=fill, below=below, values=values
        )

    def shape(self, items: Any, field: str) -> tuple[int, ...]:
        shape = self.list(items, field, _MOST_RANK)
        if not is_list(shape, lambda dim: is_whole(dim, 0, 2**31 - 1)):
            raise self.fail(field, shape, "whole numbers from 0")
        if math.prod(shape) > _MOST_ELEMENTS:
            raise self.fail(field, shape, f"at most {_MOST_ELEMENTS} elements")
        return tuple(shape)

    def values(self, items: Any, count: int, field: str) -> tuple[float | int | bool, ...]:
        values = self.list(items, field, _MOST_VALUES)
        if len(values) != count or not all(isinstance(v, int | float) for v in values):
            raise self.fail(field, items, f"{count} numbers")
        return tuple(values)

    def node(self, entry: Any, at: str) -> FragmentNode:
        self.keys(entry, at, {"op_type", "inputs", "outputs"}, {"domain", "attributes"})
        listed = entry.get("attributes", {})
        if not isinstance(listed, dict) or len(listed) > 64:
            raise self.fail(f"{at}.attributes", listed, "an object of at most 64 attributes")
        attributes = {}
        for name, value in listed.items():
            self.name(name, f"{at}.attributes")
            attributes[name] = self.attribute(value, f"{at}.attributes.{name}")
        return FragmentNode(
            op_type=self.name(entry["op_type"], f"{at}.op_type"),
            domain=self.text(entry.get("domain", ""), f"{at}.domain"),
            attributes=attributes,
            inputs=self.names(entry["inputs"], f"{at}.inputs", omitted=True),
            outputs=self.names(entry["outputs"], f"{at}.outputs", omitted=True),
        )

    def attribute(self, value: Any, field: str) -> JsonAttribute:
        if isinstance(value, bool | dict) or value is None:
            raise self.fail(field, value, "a number, a text, or a list of them")
        if isinstance(value, list):
            kinds = {type(v) for v in self.list(value, field, _MOST_VALUES)}
            if len(kinds) > 1 or not kinds <= {int, float, str}:
                raise self.fail(field, value, "a list of numbers of one kind, or of texts")
            return tuple(value)
        if isinstance(value, str):
            return self.text(value, field)
        return value  # type: ignore[no-any-return]  # a number
