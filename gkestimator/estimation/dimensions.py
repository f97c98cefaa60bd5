"""Give each of several models the dimensions that it has, and say which it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.core.naming import nearest_name
from gkestimator.core.records import Names
from gkestimator.estimation.recall import ModelSource

_MOST_NAMED = 4


class DimensionsMet:
    """Hold which models of a request have which of its dimensions.

    A model that is alone must have them all: binding it says what is wrong, with the names that it knows.
    """

    def __init__(self, combinations: Sequence[Mapping[str, int]], models: int) -> None:
        """Take the ``combinations`` of sizes that are asked for, and how many models they are asked for."""
        self._asked = combinations
        self._alone = models == 1
        self._lacking: dict[str, list[str]] = {name: [] for name in combinations[0]}
        self._known: dict[str, None] = {}
        self._models = 0

    def combinations(self, source: ModelSource) -> list[dict[str, int]]:
        """Return one number for each dimension that the model has, for each combination asked for.

        Raises ModelError where the file cannot be read.
        """
        if self._alone or not self._lacking:
            return list(map(dict, self._asked))
        own = source.dims
        self._models += 1
        self._known.update(dict.fromkeys(own))
        for name, models in self._lacking.items():
            if name not in own:
                models.append(source.name)
        # Models without a swept dimension have one row for all of its sizes.
        distinct = {
            tuple((name, size) for name, size in sizes.items() if name in own): None for sizes in self._asked
        }
        return [dict(sizes) for sizes in distinct]

    def check(self) -> None:
        """Raise UsageError for a dimension that none of the models has that were read."""
        for name, models in self._lacking.items():
            if self._models and len(models) == self._models:
                known = ", ".join(self._known) or "none"
                meant = nearest_name(name, self._known)
                raise UsageError(
                    f"dimension {name!r} is in none of the {self._models} models; known: {known}{meant}"
                )

    @property
    def notes(self) -> Names:
        """Return a line for each dimension that some of the models lack."""
        lines = []
        for name, models in self._lacking.items():
            more = len(models) - _MOST_NAMED
            named = ", ".join(models[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            if models:
                lines.append(f"dimension {name}: not in {named}, estimated without it")
        return tuple(lines)
