"""Plans to files: one, or the parts of a split."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.profiling.plan import SweepPlan, write_plan


def part_paths(path: Path, parts: int) -> tuple[Path, ...]:
    """Return, for ``plan.json`` in 4 parts: ``plan-1of4.json``, ..., ``plan-4of4.json``."""
    return tuple(path.with_name(f"{path.stem}-{i}of{parts}{path.suffix}") for i in range(1, parts + 1))


def write_plans(
    plan: SweepPlan, path: Path, split: int | None = None, *, read: Iterable[Path | str] = ()
) -> tuple[Path, ...]:
    """Write ``plan``, or ``split`` plans that share its entries, and say where.

    ``read``: files that the plan was made from, which it must not replace. Raises UsageError, OutputError.
    """
    for source in read:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise UsageError(f"-o {path}: is also read (as {source}); expected a file of its own")
    if split is None:
        write_plan(plan, path)
        return (path,)
    paths = part_paths(path, split)
    for part, target in zip(plan.split(split), paths, strict=True):
        write_plan(part, target)
    return paths
