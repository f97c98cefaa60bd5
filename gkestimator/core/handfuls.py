"""Take several inputs in two steps, the second for all of them at once, so that what one does wrong costs it alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from gkestimator.core.errors import GkestimatorError, error_of_one
from gkestimator.core.records import frozen

Key = TypeVar("Key", bound=Hashable)
Source = TypeVar("Source")
Prepared = TypeVar("Prepared")
Answer = TypeVar("Answer")


@frozen
class Handful(Generic[Key, Source, Prepared, Answer]):
    """Hold the two steps: ``prepare`` one input, then ``answer`` all that were prepared.

    ``forget`` lets go of what was prepared. ``several``: the request has more inputs than one; where it has not, an
    error of the second step is one of the request (a GPU or a bundle that cannot answer) and is raised.
    """

    prepare: Callable[[Source], Prepared]
    answer: Callable[[Mapping[Key, Prepared]], Mapping[Key, Answer]]
    forget: Callable[[], None]
    several: bool

    def outcomes(self, sources: Mapping[Key, Source]) -> dict[Key, Answer | GkestimatorError]:
        """Return the answer or the error of each input. Raises what is wrong with all of them together."""
        outcomes: dict[Key, Answer | GkestimatorError] = {}
        good: dict[Key, Prepared] = {}
        for key, source in sources.items():
            try:
                good[key] = self.prepare(source)
            except Exception as e:  # noqa: BLE001 - a defect that one input meets is called one, in its place
                outcomes[key] = error_of_one(e)
        if not good:
            return outcomes
        try:
            return {**outcomes, **self.answer(good)}
        except Exception as e:
            if len(sources) > 1:
                return self._without_the_bad(sources, outcomes, e)
            if isinstance(e, GkestimatorError) and not self.several:
                raise
            return dict.fromkeys(sources, error_of_one(e))

    def _without_the_bad(
        self,
        sources: Mapping[Key, Source],
        failed: Mapping[Key, Answer | GkestimatorError],
        error: Exception,
    ) -> dict[Key, Answer | GkestimatorError]:
        """Return all outcomes where one input, which is not known yet, spoils the answer of all."""
        bad = dict(failed)
        rest = {}
        for key, source in sources.items():
            if key in bad:
                continue
            self.forget()
            (outcome,) = self.outcomes({key: source}).values()
            if isinstance(outcome, GkestimatorError):
                bad[key] = outcome
            else:
                rest[key] = source
        self.forget()
        if len(bad) == len(failed):
            raise error  # each is answered alone: together they are too many
        return {**bad, **self.outcomes(rest)}
