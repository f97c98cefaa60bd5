"""Run every check of relations on one estimator, and write what was found as a table or JSON."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.library.relations import estimates, plans
from gkestimator.library.relations.checking import ROUNDING, Case, RelationCheck, Subject
from gkestimator.reporting.text import counts, words
from gkestimator.tables.files import json_bytes
from gkestimator.tables.layout import text_table

CHECKS: tuple[RelationCheck, ...] = (*estimates.CHECKS, *plans.CHECKS)
"""Every check, in the order in which they run: a new one is one entry in a file of this room."""
PLANS = 3
_Progress: TypeAlias = Callable[[str, int, int], None]


@frozen
class CheckOutcome:
    """Hold what a check found: cases looked at, those ``beyond`` rounding, those that ``failed`` (beyond what is
    allowed), and the worst by its relative excess."""

    check: RelationCheck
    cases: int
    beyond: int
    failed: int
    worst: float
    where: str


def check_bundles(
    bundles: Sequence[Path] = (), *, plans: int = PLANS, progress: _Progress | None = None
) -> Iterator[CheckOutcome]:
    """Yield what each check finds in the estimator of ``bundles``, or the shipped one, with ``plans`` random plans of
    every policy. Raises BundleError for a bundle that cannot be read."""
    with tempfile.TemporaryDirectory(prefix="gkest-relations-") as folder:
        subject = Subject(tuple(bundles), Path(folder), plans=plans)
        for done, check in enumerate(CHECKS):
            if progress is not None:
                progress(check.name, done, len(CHECKS))
            yield _outcome(check, subject)
    if progress is not None:
        progress("", len(CHECKS), len(CHECKS))


def _outcome(check: RelationCheck, subject: Subject) -> CheckOutcome:
    cases = beyond = failed = 0
    worst = Case("", -math.inf)
    for case in check.cases(subject):
        cases += 1
        beyond += case.excess > ROUNDING
        # What is no number holds nothing.
        failed += not case.excess <= check.allowed
        if not case.excess <= worst.excess:
            worst = case
    return CheckOutcome(
        check=check, cases=cases, beyond=beyond, failed=failed, worst=worst.excess, where=worst.where
    )


def outcomes_text(outcomes: Sequence[CheckOutcome]) -> str:
    """Return the table for people: what was looked at, what failed, and why more than rounding is let pass."""
    columns = [
        words("check", [o.check.name for o in outcomes]),
        words("what must hold", [o.check.holds for o in outcomes]),
        counts("cases", [o.cases for o in outcomes]),
        counts("beyond", [o.beyond for o in outcomes]),
        counts("failed", [o.failed for o in outcomes]),
        words("worst", [_worst_text(o) for o in outcomes], shrink=20),
    ]
    lines = text_table(columns, limit=160)
    for o in outcomes:
        if o.check.reason and o.beyond > o.failed:
            allowed = f"up to {100 * o.check.allowed:g} % is let pass"
            lines.append(f"{o.check.name}: {allowed} ({o.beyond - o.failed} cases): {o.check.reason}")
    return "\n".join(lines) + "\n"


def _worst_text(outcome: CheckOutcome) -> str:
    if outcome.worst <= ROUNDING:
        return ""
    return f"{100 * outcome.worst:.3g} % {outcome.where}"


def outcomes_json(outcomes: Sequence[CheckOutcome]) -> str:
    """Return the same as a JSON array of objects; ``worst_pct`` is null where no case is beyond rounding, or where the
    answer was refused."""
    records = []
    for o in outcomes:
        worst_pct = None
        if ROUNDING < o.worst < math.inf:
            worst_pct = 100 * o.worst
        records.append(
            {
                "check": o.check.name,
                "holds": o.check.holds,
                "cases": o.cases,
                "beyond": o.beyond,
                "failed": o.failed,
                "allowed_pct": 100 * o.check.allowed,
                "reason": o.check.reason,
                "worst_pct": worst_pct,
                "where": o.where,
            }
        )
    return json_bytes(records).decode()
