"""Keep one record per operator: its shape rule, its lowering rule and the traits that other parts ask for.

A record is filled by the decorators ``@shape_rule`` and ``@lowering_rule``; either takes every trait as a keyword
argument, so a plug-in says the traits of its own operator as the built-in operators do. Operators that need no rule of
one kind (control flow is expanded before lowering) say their traits with :func:`declare_traits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Generic, TypeAlias, TypeVar

from gkestimator.core.records import frozen

OperatorKey: TypeAlias = "tuple[str, str]"
RuleT = TypeVar("RuleT", bound=Callable[..., Any])

_WORDS: Mapping[str, tuple[str, ...]] = {
    "autocast": ("widest", "first", "half", "fp32", "norm", "declared"),
    "few_bits": ("", "product", "moves", "pools", "pointwise", "writes"),
    "strides": ("", "reshape", "transpose", "expand", "slice", "select", "same"),
}
_ELEMENTS: Mapping[str, type] = {"host_inputs": int, "in_place": str, "view_in": str}


@frozen
class OperatorTraits:
    """Hold what other parts need to know of an operator besides its rules.

    ``host_inputs`` are the positions of inputs that runtimes read on the host (shapes, axes, bounds), so that they
    take no GPU memory: positions of the ONNX schema, which ONNX Runtime's CUDA kernels declare as CPU memory too.
    ``random``: two runs differ, so it is never folded, not even when nothing but constants goes in.
    ``control_flow``: its subgraphs are expanded in its place. ``weight_view``: with nothing but weights for inputs
    its result is no memory of its own.

    ``in_place`` names the runtimes in which the result may take over the memory of its first operand (torch: models
    build this activation with ``inplace=True``). ``in_place_before`` names the activation before which models run
    it in place in torch (a shortcut's addition), and ``feeds_in_place`` says that models run what follows it in
    place. ``autocast`` says what ``torch.autocast`` makes of its result: ``half``; ``fp32``; ``norm`` (fp32 unless
    the option ``amp_norms`` says half); ``declared`` (the type that the file says); ``widest`` (of its inputs) or
    ``first`` (of its first input alone). ``view_in`` names the
    runtimes that answer it without a kernel. ``strides`` says how the strides of a view follow from its source's in
    torch; empty where it is never a view. ``keeps_layout``: the result lies in memory as the operand of its size.
    ``sequence``: it makes or takes sequences of tensors. ``quantised``: it makes or takes quantised activations.
    ``few_bits`` says what a compiler that brings models to 8 bits makes of it: ``product`` multiplies 8 bits by
    constant weights of 8 bits; ``moves`` gives what it takes; ``pools`` takes and gives 8 bits together; ``pointwise``
    reads and writes either, in any mixture; ``writes`` calculates in half precision and writes either; empty: half
    precision.
    """

    host_inputs: tuple[int, ...] = ()
    random: bool = False
    control_flow: bool = False
    weight_view: bool = False
    in_place: tuple[str, ...] = ()
    in_place_before: str = ""
    feeds_in_place: bool = False
    autocast: str = "widest"
    view_in: tuple[str, ...] = ()
    strides: str = ""
    keeps_layout: bool = False
    sequence: bool = False
    quantised: bool = False
    few_bits: str = ""


@frozen
class OperatorRecord:
    """Hold all that is known of one operator. ``kind`` says in a word what its lowering rule does."""

    shape_rule: Callable[..., Any] | None = None
    lowering_rule: Callable[..., Any] | None = None
    kind: str = ""
    traits: OperatorTraits


NO_TRAITS = OperatorTraits()
OPERATORS: dict[OperatorKey, OperatorRecord] = {}
"""Every known operator by its exact key ``(domain, op_type)``; written by the functions of this module alone."""

_NAMES = frozenset(field.name for field in fields(OperatorTraits))
_CHANGES: list[int] = [0]


def version_of_operators() -> int:
    """Return a number that is another after every registration: what is remembered of rules is keyed by it."""
    return _CHANGES[0]


def _changed() -> None:
    _CHANGES[0] += 1


def traits_of(key: OperatorKey) -> OperatorTraits:
    """Return the traits of an operator; those of an unknown operator say nothing special."""
    record = OPERATORS.get(key)
    if record is not None:
        return record.traits
    return NO_TRAITS


def declare_traits(*op_types: str, domain: str = "", **traits: Any) -> None:
    """Say the traits of operators that have no rule to say them with.

    Raises TypeError or ValueError when a trait does not exist, has a value of the wrong form, or was said otherwise
    before.
    """
    for op_type in op_types:
        key = (domain, op_type)
        record = OPERATORS.get(key) or OperatorRecord(traits=NO_TRAITS)
        OPERATORS[key] = replace(record, traits=_with(key, record.traits, traits))
    _changed()


def register_rule(
    field: str,
    rule: Callable[..., Any],
    keys: Iterable[OperatorKey],
    traits: Mapping[str, Any],
    kind: str = "",
) -> None:
    """Set ``field`` (``shape_rule`` or ``lowering_rule``) and ``traits`` of the records of ``keys``.

    Raises AssertionError when a key has such a rule, TypeError or ValueError as :func:`declare_traits` does.
    """
    for key in keys:
        record = OPERATORS.get(key) or OperatorRecord(traits=NO_TRAITS)
        if getattr(record, field) is not None:
            raise AssertionError(f"two {field.replace('_', ' ')}s for {key}")
        changes: dict[str, Any] = {field: rule, "traits": _with(key, record.traits, traits)}
        if kind:
            changes["kind"] = kind
        OPERATORS[key] = replace(record, **changes)
    _changed()


def restore_operators(before: Mapping[OperatorKey, OperatorRecord]) -> None:
    """Put back the records of a copy of ``OPERATORS`` made before (a plug-in failed half-way, a test is over)."""
    records = dict(before)
    OPERATORS.clear()
    OPERATORS.update(records)
    _changed()


def _with(key: OperatorKey, traits: OperatorTraits, words: Mapping[str, Any]) -> OperatorTraits:
    """Return ``traits`` with ``words`` added, each checked."""
    if not words:
        return traits
    for name, value in words.items():
        if name not in _NAMES:
            raise TypeError(f"operator {key}: no trait {name!r}, expected one of {', '.join(sorted(_NAMES))}")
        default = getattr(NO_TRAITS, name)
        said = getattr(traits, name)
        _check(key, name, value, default)
        if said not in (default, value):
            raise ValueError(f"operator {key}: trait {name} was {said!r} before, found {value!r}")
    return replace(traits, **words)


def _check(key: OperatorKey, name: str, value: Any, default: Any) -> None:
    what = f"operator {key}: trait {name}"
    if not isinstance(value, type(default)):
        raise TypeError(f"{what} is {value!r}, expected a {type(default).__name__}")
    element = _ELEMENTS.get(name)
    if element is not None and not all(type(item) is element for item in value):
        raise TypeError(f"{what} is {value!r}, expected a tuple of {element.__name__}")
    words = _WORDS.get(name)
    if words is not None and value not in words:
        raise ValueError(f"{what} is {value!r}, expected one of {', '.join(filter(None, words))}")


class RuleTable(Mapping[OperatorKey, RuleT], Generic[RuleT]):
    """Show the rules of one kind by key; a view of ``OPERATORS``."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __getitem__(self, key: OperatorKey) -> RuleT:
        rule = getattr(OPERATORS[key], self._field)
        if rule is None:
            raise KeyError(key)
        return rule  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[OperatorKey]:
        return (key for key, record in OPERATORS.items() if getattr(record, self._field) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_built_in(rule: Callable[..., Any]) -> bool:
    """Return True for a rule of the package itself; every other is a plug-in's, whose results are checked."""
    return getattr(rule, "__module__", "").startswith("gkestimator.")


def rule_location(rule: Callable[..., Any]) -> str:
    """Return the name of ``rule`` and the file and line it stands in, for an error's text."""
    code = getattr(rule, "__code__", None)
    name = getattr(rule, "__name__", type(rule).__name__)
    if code is None:
        return f"rule {name} (module {getattr(rule, '__module__', 'unknown')})"
    return f"rule {name} ({code.co_filename}, line {code.co_firstlineno})"
