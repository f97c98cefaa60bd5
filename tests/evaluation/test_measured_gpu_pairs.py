"""``benchmarks/measured_gpu.py``: what models side by side ask of the GPU alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.tables import COLOCATION, REQUIREMENTS, CoRun, write_table

pytest.importorskip("scipy")


@pytest.mark.slow
def test_demands_of_pairs_are_estimated_where_they_were_not_measured(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from _measured_models import read_models
    from _measured_pairs import fitted_to_pairs

    from gkestimator.estimation import estimate_rows
    from gkestimator.interference.pairs import DEMANDS

    shares = (100.0, 50.0)
    rows = estimate_rows(models, gpus=["A100"], batch_sizes=[32], dtype="fp32", sm_shares=shares).rows
    gpu = gpu_catalogue().resolve("A100")[0]

    kept = [replace(r, source="measured", latency_low_ms=None, latency_high_ms=None) for r in rows]
    write_table(REQUIREMENTS, [r for r in kept if r.sm_share_pct == 100.0], tmp_path / "table.parquet")
    found = read_models(tmp_path / "table.parquet", models, [], gpu, unfold_batchnorm=True)
    runs = [
        CoRun(
            group=f"{a.model}+{b.model}@{share:g}", model=one.model, gpu=one.gpu, runtime="torch", dtype="fp32",
            batch_size=32, sm_share_pct=share, latency_alone_ms=one.latency_ms or 0.0,
            latency_together_ms=(one.latency_ms or 0.0) * (1 + (other.dram_util_mean_pct or 0) / 50), sharing="mps",
            **{name: getattr(one, name) for name in DEMANDS},
        )
        for share in shares
        for a, b in itertools.combinations([r for r in rows if r.sm_share_pct == share], 2)
        for one, other in ((a, b), (b, a))
    ]  # fmt: skip

    def said(pairs: Sequence[CoRun]) -> str:
        write_table(COLOCATION, pairs, tmp_path / "pairs.parquet")
        return fitted_to_pairs(tmp_path / "pairs.parquet", pairs, found, None, tmp_path)

    as_measured = said(runs)
    assert (
        as_measured.endswith("demands: as measured")
        and "24 slowdowns in 12 groups of 4 models" in as_measured
    )
    for bare in ({"dram_util_mean_pct": None, "l2_util_mean_pct": None}, dict.fromkeys(DEMANDS)):
        estimated = said([replace(run, **bare) for run in runs])
        assert estimated.endswith("demands that the pairs do not name: estimated by the package's bundle")
        # The measured demands were this very estimate's, so that the laws come out alike.
        assert estimated.split("\n\ndemands")[0] == as_measured.split("\n\ndemands")[0]
