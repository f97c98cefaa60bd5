"""Declare an option once: its spelling, type, bounds, default and explanation, and the one check of its value.

A record of options is a dataclass whose fields are :class:`Option`, which are descriptors: a value is checked and
brought into one form where it is set, wherever it comes from, and is set once. The command line, the functions of
the library and the page ``docs/reference/options.md`` are derived from such records; nothing else says what an
option is. Messages name an option by :func:`spelled`, as the one who reads them would write it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.option_kinds import Kind, Pairs, UnfitError

Given = TypeVar("Given")
Read = TypeVar("Read")
T = TypeVar("T")
P = ParamSpec("P")

REQUIRED: Any = object()
"""Stands for the default of an option that has none."""
_FOUND_CHARACTERS = 60
_INTERFACE = {"command line": False}


@contextlib.contextmanager
def at_command_line() -> Iterator[None]:
    """Have messages made in the block name options as the command line spells them."""
    before = _INTERFACE["command line"]
    _INTERFACE["command line"] = True
    try:
        yield
    finally:
        _INTERFACE["command line"] = before


def spelled(program: str, command: str = "") -> str:
    """Return an option for a message: as a ``program`` passes it, or as the ``command`` line has it.

    ``spelled("dims={'seq': 8}", "--dim seq=8")``; ``command`` is by default the same name behind two dashes. What is
    kept longer than a message (a row's warning, a plan's note) names neither: both may read it.
    """
    if not _INTERFACE["command line"]:
        return program
    return command or "--" + program.replace("_", "-")


class Option(Generic[Given, Read]):
    """Declare one option as a field of a record; ``Given`` is what may be set, ``Read`` what is read.

    ``default``: None makes the option nullable, REQUIRED makes callers of the library say it. ``flag``: the spelling
    on the command line; by default the field's name behind two dashes, and None where the library alone offers it.
    ``unit``: as in the documentation, "" for none. ``repeat``: the flag may stand several times. ``section``: title
    that it stands under in the help of a command; "": that of the command's other options.
    """

    def __init__(
        self,
        default: Any,
        kind: Kind,
        help: str,
        *,
        flag: str | None = "",
        unit: str = "",
        repeat: bool = False,
        section: str = "",
    ) -> None:
        self.default = default
        self.kind = kind
        self.help = help
        self.unit = unit
        self.repeat = repeat
        self.section = section
        self.name = ""
        self._flag = flag

    @property
    def flag(self) -> str | None:
        """Return the spelling on the command line; None where it is not offered there."""
        if self._flag == "":
            return "--" + self.name.replace("_", "-")
        return self._flag

    @property
    def annotation(self) -> str:
        """Return the type in a signature."""
        if self.default is None:
            return f"{self.kind.python} | None"
        return self.kind.python

    @property
    def expected(self) -> str:
        """Return what a value is, in words."""
        return self.kind.expected

    def checked(self, value: object) -> Any:
        """Return ``value`` in the form that is read. Raises UsageError: name, found and expected, in one line."""
        if value is None and self.default is None:
            return None
        try:
            return self.kind.checked(value)
        except UnfitError as e:
            shown = one_line(e.found, limit=_FOUND_CHARACTERS)
            raise UsageError(f"{self.name}: found {shown}, expected {e.expected}") from e

    def gathered(self, values: Sequence[Any]) -> Any:
        """Return the values of a flag that stood several times as one; nothing where it never stood."""
        if not values:
            if isinstance(self.kind, Pairs):
                return {}
            return ()
        parts = [part for value in values for part in value]
        return self.checked(tuple(dict.fromkeys(parts)))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, record: None, owner: type) -> Given: ...
    @overload
    def __get__(self, record: object, owner: type) -> Read: ...
    def __get__(self, record: object | None, owner: type) -> Any:
        if record is not None:
            return record.__dict__[self.name]
        if self.default is REQUIRED:  # a dataclass then takes the field for one without a default
            raise AttributeError(self.name)
        return self.default

    def __set__(self, record: object, value: Given) -> None:
        # Not the dataclass' own frozen=True: for type checkers a subclass would then read what may be set.
        if self.name in record.__dict__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {self.name!r}")
        record.__dict__[self.name] = self.checked(value)


Value: TypeAlias = Option[T, T]
"""An option that is read as it is set."""


def options_of(record: type) -> dict[str, Option[Any, Any]]:
    """Return the options of a record by name, in the order of its signature."""
    statics = {
        name: inspect.getattr_static(record, name, None) for name in inspect.signature(record).parameters
    }
    return {name: option for name, option in statics.items() if isinstance(option, Option)}


def option_of(record: type, name: str) -> Option[Any, Any]:
    """Return the option ``name`` of a record."""
    return options_of(record)[name]


def variant(record: type, name: str, **changes: Any) -> Option[Any, Any]:
    """Return the option ``name`` of ``record`` for another record, with another default, kind or help where named."""
    changed = copy.copy(option_of(record, name))
    for attribute, value in changes.items():
        setattr(changed, attribute, value)
    return changed


def taking(record: Callable[P, Read]) -> Callable[[Callable[[Read], T]], Callable[P, T]]:
    """Give a function of one record the record's parameters instead, with its types, signature and explanations.

    The function that results raises UsageError for a keyword that the record has not.
    """
    owner = cast(type, record)

    def decorate(function: Callable[[Read], T]) -> Callable[P, T]:
        signature = _signature(owner)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in signature.parameters:
                    known = ", ".join(signature.parameters)
                    raise UsageError(
                        f"{function.__name__}: found the option {one_line(name, limit=60)!r}, expected one of {known}"
                    )
            return function(record(*args, **kwargs))

        vars(call)["__signature__"] = signature.replace(
            return_annotation=function.__annotations__.get("return", inspect.Signature.empty)
        )
        call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_explained(owner)}"
        return call

    return decorate


def _signature(record: type) -> inspect.Signature:
    options = options_of(record)
    parameters = [
        parameter.replace(annotation=options[name].annotation) if name in options else parameter
        for name, parameter in inspect.signature(record).parameters.items()
    ]
    return inspect.Signature(parameters)


def _explained(record: type) -> str:
    lines = [
        f"``{name}``: {option.help} Expects {option.expected}." for name, option in options_of(record).items()
    ]
    return "\n".join(lines)


def values_of(record: object, names: type) -> Mapping[str, Any]:
    """Return what ``record`` says of the fields that the record class ``names`` has too."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(names)}
