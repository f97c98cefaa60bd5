"""``gkest train --interference``: files of measured pairs to a file of coefficients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents.interference import (
    FILE_NAME,
    MOST_WEIGHT,
    InterferenceFile,
    InterferenceFit,
    interference_yaml,
)
from gkestimator.interference.fitting import fit_interference
from gkestimator.interference.pairs import read_pairs
from gkestimator.reporting.text import figures, words
from gkestimator.tables.layout import text_table


@frozen
class InterferenceReport:
    """Hold ``found``: the coefficients and where they come from; ``data``: the bytes of their file."""

    found: InterferenceFile
    data: bytes

    def __str__(self) -> str:
        """Return the errors of every law on models left out, and what was kept."""
        fit = self.found.fit
        lines = [
            f"interference: {fit.measurements:,} slowdowns in {fit.groups:,} groups of {len(fit.models)} models on "
            f"{', '.join(fit.gpus)}; errors with each model left out in turn",
            "",
        ]
        lines += text_table(
            [
                words("law", [e.law for e in fit.errors]),
                figures("median error %", [e.median_pct for e in fit.errors], "{:.1f}".format),
                figures("90th percentile %", [e.p90_pct for e in fit.errors], "{:.1f}".format),
            ]
        )
        return "\n".join([*lines, "", *fit.notes])


def train_interference(
    pairs: Path, tables: Sequence[Path] = (), *, gpu_specs: Sequence[Path | str] = ()
) -> InterferenceReport:
    """Fit the laws to the co-location table at ``pairs``; demands that it lacks are the requirement
    ``tables``'. The same files give the same bytes. Raises TableError naming file, row and column;
    UsageError: too few models, a weight that the file's reader would refuse, no scipy."""
    pairs = Path(pairs)
    measured = read_pairs(pairs, [Path(t) for t in tables], gpu_specs=gpu_specs)
    fit = fit_interference(measured)
    for law in (fit.gpulet, fit.contention, fit.fitted):
        for name, weight in ({} if law is None else asdict(law)).items():
            if not isinstance(weight, str) and not abs(weight) <= MOST_WEIGHT:
                raise UsageError(
                    f"{pairs}: the fit gives {name} the weight {weight:g}, expected at most {MOST_WEIGHT:g}: the "
                    "demands measured are too near to 0 to know it by"
                )
    result = InterferenceFile(
        gpulet=fit.gpulet,
        contention=fit.contention,
        fit=InterferenceFit(
            pairs=pairs.name,
            pairs_sha256=hashlib.sha256(pairs.read_bytes()).hexdigest(),
            tables=tuple(Path(t).name for t in tables),
            measurements=len(measured),
            groups=len({m.group for m in measured}),
            models=tuple(sorted({name for m in measured for name in m.models})),
            gpus=tuple(sorted({m.gpu for m in measured})),
            errors=fit.errors,
            ranges=fit.ranges,
            notes=fit.notes,
            constant=fit.constant,
        ),
        fitted=fit.fitted,
    )
    return InterferenceReport(found=result, data=interference_yaml(result))


def coefficients_path(output: Path, *, bundle: bool, read: Sequence[Path] = ()) -> Path:
    """Return where the coefficients go for ``-o output``: into the ``bundle``, or there. Raises UsageError: a
    suffix that is not .yaml or .yml, a folder, or a file that is ``read``."""
    if bundle:
        return output / FILE_NAME
    if output.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(
            f"-o {output}: found the suffix {output.suffix!r}, expected .yaml (without DATASET the coefficients "
            "alone are written)"
        )
    if output.is_dir():
        raise UsageError(f"-o {output}: found a folder, expected a file to write the coefficients to")
    for other in read:
        if output.exists() and other.exists() and output.samefile(other):
            raise UsageError(f"-o {output}: is also read as {other}; expected a file of its own")
    return output
