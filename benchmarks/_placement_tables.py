"""Keep the requirement tables that placements are compared on: table A.1 of the thesis, and our own estimates.

Our own are at batch sizes and SM shares, kept in a temporary folder until the sources they come from change.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import gkestimator
from gkestimator.tables import REQUIREMENTS, Requirement, read_table, write_table

V100 = "V100-SXM2-16GB"
GPUS = (V100, "T4", "L4", "A100-SXM4-80GB", "H100-SXM")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SM_SHARES = tuple(float(s) for s in range(10, 101, 10))


@cache
def table_a1() -> tuple[Requirement, ...]:
    """Table A.1 of the thesis on V100-SXM2-16GB, measured (batch sizes 4 to 128, the whole GPU)."""
    return read_table(Path(str(files("gkestimator.datasets"))) / "published" / "ethz_v100.csv", REQUIREMENTS)


def own_estimates(
    models: Path | None = None,
    *,
    gpus: Sequence[str] = GPUS,
    batch_sizes: Sequence[int] = BATCHES,
    sm_shares: Sequence[float] = SM_SHARES,
) -> tuple[Requirement, ...]:
    """Estimates (torch, fp32) of the ONNX files in the folder ``models`` (None: the golden set of tests/golden)."""
    from gkestimator.core.naming import find_models
    from gkestimator.estimation import estimate_rows

    key = hashlib.sha256(repr((models, gpus, batch_sizes, sm_shares, _sources(models))).encode()).hexdigest()[
        :20
    ]
    kept = Path(tempfile.gettempdir()) / f"gkest-placement-{os.getuid()}" / f"estimates-{key}.csv"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            if models is None:
                paths: Sequence[Path] = golden_set(Path(folder))
            else:
                paths, missing = find_models([str(models)])
                if missing:
                    sys.exit(f"{missing[0][1]}")
            found = estimate_rows(
                paths, gpus=gpus, batch_sizes=batch_sizes, sm_shares=sm_shares, runtime="torch", dtype="fp32"
            )
        for path, error in found.failures:
            print(f"{path}: left out: {error}", file=sys.stderr)
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        write_table(REQUIREMENTS, found.rows, kept)
    return read_table(kept, REQUIREMENTS)


def golden_set(folder: Path) -> list[Path]:
    """Writes the golden set into ``folder``; its files."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "golden"))
    from golden_models import golden_models

    # The onnx package ships a ResNet-50 too; one is enough.
    return [p for p in golden_models(folder) if p.stem != "light_resnet50"]


def _sources(models: Path | None) -> list[tuple[str, int, int]]:
    """Name, size and time of every file that the estimates come from."""
    roots = [
        Path(gkestimator.__file__).parent,
        *(Path(str(files(f"gkestimator.{n}"))) for n in ("datasets", "models")),
    ]
    roots += [Path(__file__).parents[1] / "tests" / "golden"] if models is None else [models]
    found = []
    for root in roots:
        for path in sorted(root.rglob("*")):
            if (
                path.is_file()
                and "placement" not in path.parts
                and path.suffix in (".py", ".toml", ".json", ".npz", ".onnx")
            ):
                stat = path.stat()
                found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return found
