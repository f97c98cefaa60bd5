"""Fragments: one operator, or one pattern of a few, with concrete shapes, as plans and kernel datasets hold it.

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
from gkestimator.core.records import frozen

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
    """A tensor that goes into a fragment.

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
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.dtype.nbytes(self.elements)


@frozen
class FragmentNode:
    """One ONNX node; an omitted optional input is an empty name."""

    op_type: str
    domain: str
    attributes: Mapping[str, JsonAttribute]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@frozen
class Fragment:
    """Nodes in execution order, the tensors that go in, the names of those that come out, and opset versions by
    domain. ``pattern`` names what the nodes are together (``gelu``, ``layer_norm``, ..., ``model:resnet50`` for a whole
    model); empty for a single node."""

    opsets: Mapping[str, int]
    nodes: tuple[FragmentNode, ...]
    tensors: tuple[FragmentTensor, ...]
    outputs: tuple[str, ...]
    pattern: str = ""

    @property
    def op_type(self) -> str:
        """The pattern's name, or the type of the only node."""
        return self.pattern or self.nodes[0].op_type

    @property
    def is_model(self) -> bool:
        """Whether the fragment is a whole model."""
        return self.pattern.startswith(MODEL_PREFIX)

    @property
    def op_domain(self) -> str:
        """The domain of the only node; ``pattern`` where the fragment is one."""
        if self.pattern:
            return "pattern"
        return self.nodes[0].domain

    def document(self) -> dict[str, Any]:
        """The fragment as JSON values, defaults left out."""
        tensors = []
        for t in self.tensors:
            entry: dict[str, Any] = {"name": t.name, "dtype": t.dtype.value, "shape": list(t.shape)}
            if t.role != "input":
                entry["role"] = t.role
            if t.fill != "normal":
                entry["fill"] = t.fill
            if t.below is not None:
                entry["below"] = t.below
            if t.values is not None:
                entry["values"] = list(t.values)
            tensors.append(entry)
        nodes = []
        for n in self.nodes:
            node: dict[str, Any] = {
                "op_type": n.op_type,
                "inputs": list(n.inputs),
                "outputs": list(n.outputs),
            }
            if n.domain:
                node["domain"] = n.domain
            if n.attributes:
                node["attributes"] = {
                    k: list(v) if isinstance(v, tuple) else v for k, v in sorted(n.attributes.items())
                }
            nodes.append(node)
        result: dict[str, Any] = {
            "opsets": dict(sorted(self.opsets.items())),
            "nodes": nodes,
            "tensors": tensors,
            "outputs": list(self.outputs),
        }
        if self.pattern:
            result["pattern"] = self.pattern
        return result

    def text(self) -> str:
        """The fragment as one line of canonical JSON: equal fragments give equal texts."""
        return json.dumps(self.document(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def digest(self) -> str:
        """16 hexadecimal digits that name the fragment's content."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    @classmethod
    def parse(cls, text: str, *, where: str) -> Fragment:
        """The fragment that :meth:`text` wrote. Raises ModelError as :meth:`from_document`."""
        try:
            document = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as e:
            raise ModelError(f"{where}: not a fragment in JSON: {e}") from e
        return cls.from_document(document, where=where)

    @classmethod
    def from_document(cls, document: Any, *, where: str) -> Fragment:
        """The fragment that JSON values describe, checked as a stranger's. Raises ModelError in one line that names
        ``where``, the field, what was found and what was expected."""
        d = _Checked(where)
        d.keys(document, "fragment", {"opsets", "nodes", "tensors", "outputs"}, {"pattern"})
        opsets = document["opsets"]
        if (
            not isinstance(opsets, dict)
            or not 1 <= len(opsets) <= 8
            or not all(
                isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= 1000 for v in opsets.values()
            )
        ):
            raise d.fail("opsets", opsets, "an object of 1 to 8 whole numbers by domain")
        for domain in opsets:
            d.text(domain, "opsets")
        pattern = document.get("pattern", "")
        if not isinstance(pattern, str) or (pattern and not _NAME.match(pattern)):
            raise d.fail("pattern", pattern, "a name")
        whole = pattern.startswith(MODEL_PREFIX)
        most_nodes = _MOST_NODES_OF_A_MODEL if whole else _MOST_NODES
        most_tensors = _MOST_TENSORS_OF_A_MODEL if whole else _MOST_TENSORS
        tensors = tuple(
            d.tensor(t, i) for i, t in enumerate(d.list(document["tensors"], "tensors", most_tensors))
        )
        nodes = tuple(d.node(n, i) for i, n in enumerate(d.list(document["nodes"], "nodes", most_nodes)))
        outputs = tuple(d.name(o, "outputs") for o in d.list(document["outputs"], "outputs", _MOST_TENSORS))
        known = {t.name for t in tensors}
        if len(known) != len(tensors):
            raise d.fail("tensors", "a name twice", "distinct names")
        for i, node in enumerate(nodes):
            for name in node.inputs:
                if name and name not in known:
                    raise d.fail(f"nodes[{i}].inputs", name, "a tensor, or an output of an earlier node")
            for name in node.outputs:
                if name and name in known:
                    raise d.fail(f"nodes[{i}].outputs", name, "a new name")
            known.update(n for n in node.outputs if n)
        if not nodes or not outputs or not set(outputs) <= known:
            raise d.fail("outputs", list(outputs), "names that the nodes write, and at least one node")
        return cls(opsets=opsets, nodes=nodes, tensors=tensors, outputs=outputs, pattern=pattern)


def _no_constant(text: str) -> float:
    raise ValueError(f"found {text}, expected a finite number")


class _Checked:
    """Takes a stranger's JSON apart, refusing what does not fit."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, field: str, found: object, expected: str) -> ModelError:
        if not isinstance(found, dict | list):
            shown = repr(found)
        else:
            shown = f"a {type(found).__name__} of {len(found)}"
        return ModelError(f"{self.where}: {field}: found {shown[:80]}, expected {expected}")

    def keys(self, found: Any, field: str, needed: set[str], optional: set[str]) -> None:
        if not isinstance(found, dict):
            raise self.fail(field, type(found).__name__, "an object")
        for key in sorted(needed - found.keys()):
            raise self.fail(field, f"no {key}", f"the keys {', '.join(sorted(needed))}")
        for key in sorted(found.keys() - needed - optional):
            raise self.fail(field, key, f"only the keys {', '.join(sorted(needed | optional))}")

    def list(self, found: Any, field: str, most: int) -> list[Any]:
        if not isinstance(found, list) or len(found) > most:
            raise self.fail(field, found, f"a list of at most {most}")
        return found

    def text(self, found: Any, field: str) -> str:
        if not isinstance(found, str) or len(found) > _MOST_TEXT or not (found == "" or found.isprintable()):
            raise self.fail(field, found, f"a printable text of at most {_MOST_TEXT} characters")
        return found

    def name(self, found: Any, field: str) -> str:
        if not isinstance(found, str) or not _NAME.match(found):
            raise self.fail(field, found, "a name of letters, digits and _ . : / -")
        return found

    def tensor(self, found: Any, i: int) -> FragmentTensor:
        at = f"tensors[{i}]"
        self.keys(found, at, {"name", "dtype", "shape"}, {"role", "fill", "below", "values"})
        try:
            dtype = DType(found["dtype"])
        except ValueError as e:
            raise self.fail(f"{at}.dtype", found["dtype"], "an ONNX element type in lower case") from e
        shape = self.list(found["shape"], f"{at}.shape", _MOST_RANK)
        if not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**31 for v in shape):
            raise self.fail(f"{at}.shape", shape, "whole numbers from 0")
        if math.prod(shape) > _MOST_ELEMENTS:
            raise self.fail(f"{at}.shape", shape, f"at most {_MOST_ELEMENTS} elements")
        role = found.get("role", "input")
        fill = found.get("fill", "normal")
        if role not in _ROLES:
            raise self.fail(f"{at}.role", role, " or ".join(_ROLES))
        if fill not in FILLS:
            raise self.fail(f"{at}.fill", fill, " or ".join(FILLS))
        below = found.get("below")
        values = found.get("values")
        if (fill == "index") != (below is not None):
            raise self.fail(f"{at}.below", below, "a whole number for fill index, and for no other")
        if below is not None and (
            not isinstance(below, int) or isinstance(below, bool) or not 1 <= below < 2**31
        ):
            raise self.fail(f"{at}.below", below, "a whole number from 1")
        if (fill == "value") != (values is not None):
            raise self.fail(f"{at}.values", values, "numbers for fill value, and for no other")
        if values is not None:
            numbers = self.list(values, f"{at}.values", _MOST_VALUES)
            if len(numbers) != math.prod(shape) or not all(isinstance(v, int | float) for v in numbers):
                raise self.fail(f"{at}.values", values, f"{math.prod(shape)} numbers")
            values = tuple(numbers)
        return FragmentTensor(
            name=self.name(found["name"], f"{at}.name"),
            dtype=dtype,
            shape=tuple(shape),
            role=role,
            fill=fill,
            below=below,
            values=values,
        )

    def node(self, found: Any, i: int) -> FragmentNode:
        at = f"nodes[{i}]"
        self.keys(found, at, {"op_type", "inputs", "outputs"}, {"domain", "attributes"})
        attributes = found.get("attributes", {})
        if not isinstance(attributes, dict) or len(attributes) > 64:
            raise self.fail(f"{at}.attributes", attributes, "an object of at most 64 attributes")
        inputs = self.list(found["inputs"], f"{at}.inputs", _MOST_TENSORS)
        return FragmentNode(
            op_type=self.name(found["op_type"], f"{at}.op_type"),
            domain=self.text(found.get("domain", ""), f"{at}.domain"),
            attributes={
                self.name(k, f"{at}.attributes"): self.attribute(v, f"{at}.attributes.{k}")
                for k, v in attributes.items()
            },
            inputs=tuple(v if v == "" else self.name(v, f"{at}.inputs") for v in inputs),
            outputs=tuple(
                v if v == "" else self.name(v, f"{at}.outputs")
                for v in self.list(found["outputs"], f"{at}.outputs", _MOST_TENSORS)
            ),
        )

    def attribute(self, found: Any, field: str) -> JsonAttribute:
        if isinstance(found, bool) or found is None or isinstance(found, dict):
            raise self.fail(field, found, "a number, a text, or a list of them")
        if isinstance(found, list):
            kinds = {type(v) for v in self.list(found, field, _MOST_VALUES)}
            if len(kinds) > 1 or not kinds <= {int, float, str}:
                raise self.fail(field, found, "a list of numbers of one kind, or of texts")
            return tuple(found)
        if isinstance(found, str):
            return self.text(found, field)
        return found
