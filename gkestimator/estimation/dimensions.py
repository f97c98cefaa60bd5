"""Give each of several models the dimensions and inputs that it has, and say which it lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.naming import nearest_name
from gkestimator.core.records import Names
from gkestimator.estimation.recall import ModelSource

_MOST_NAMED = 4


class _NamesMet:
    """Hold which models of a request have which of the names that something is asked for.

    A model that is alone must have them all: binding it says what is wrong, with the names that it knows.
    """

    noun = ""

    def __init__(self, names: Iterable[str], models: int) -> None:
        self._lacking: dict[str, dict[str, None]] = {name: {} for name in names}
        self._alone = models == 1 or not self._lacking
        self._known: dict[str, None] = {}
        self._models: set[str] = set()  # a model may be asked about again

    def _meet(self, source: ModelSource, own: Collection[str]) -> None:
        """Take in the names that a model has."""
        self._models.add(source.name)
        self._known.update(dict.fromkeys(own))
        for name, models in self._lacking.items():
            if name not in own:
                models[source.name] = None

    def check(self) -> None:
        """Raise UsageError for a name that none of the models has that were read."""
        for name, models in self._lacking.items():
            if self._models and len(models) == len(self._models):
                known = ", ".join(self._known) or "none"
                meant = nearest_name(name, self._known)
                raise UsageError(
                    f"{self.noun} {name!r} is in none of the {len(models)} models; known: {known}{meant}"
                )

    @property
    def notes(self) -> Names:
        """Return a line for each name that some of the models lack."""
        lines = []
        for name, models in self._lacking.items():
            more = len(models) - _MOST_NAMED
            named = ", ".join(list(models)[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            if models:
                lines.append(f"{self.noun} {name}: not in {named}, estimated without it")
        return tuple(lines)


class DimensionsMet(_NamesMet):
    """Hold which models of a request have which of its dimensions."""

    noun = "dimension"

    def __init__(self, combinations: Sequence[Mapping[str, int]], models: int) -> None:
        """Take the ``combinations`` of sizes that are asked for, and how many models they are asked for."""
        super().__init__(combinations[0], models)
        self._asked = combinations

    def combinations(self, source: ModelSource) -> list[dict[str, int]]:
        """Return one number for each dimension that the model has, for each combination asked for.

        Raises ModelError where the file cannot be read.
        """
        if self._alone:
            return list(map(dict, self._asked))
        own = source.dims
        self._meet(source, own)
        # Models without a swept dimension have one row for all of its sizes.
        distinct = {
            tuple((name, size) for name, size in sizes.items() if name in own): None for sizes in self._asked
        }
        return [dict(sizes) for sizes in distinct]


class InputsMet(_NamesMet):
    """Hold which models of a request have which of the inputs that values are given for."""

    noun = "input"

    def __init__(self, given: Mapping[str, Any], models: int) -> None:
        """Take the ``given`` values by name, and how many models they are given for."""
        super().__init__(given, models)
        self._given = given

    def of(self, source: ModelSource) -> dict[str, Any]:
        """Return the values for the inputs that the model has. Raises ModelError where the file cannot be read."""
        if self._alone:
            return dict(self._given)
        own = [spec.name for spec in source.model.inputs]
        self._meet(source, own)
        return {name: value for name, value in self._given.items() if name in own}
