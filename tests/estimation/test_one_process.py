"""Memory of several batch sizes in one process, and the context's own figure."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import onnx.parser
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.estimation import estimate_rows, reserved_in_one_process

MIB = 1 << 20
NET = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 2621440] x) => (float[N, 2621440] y) {
      a = Sigmoid (x)
      b = Tanh (a)
      y = Sigmoid (b)
    }"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx.parser.parse_model(NET).SerializeToString())
    return path


def test_batches_share_a_process(net: Path) -> None:
    # 10 MiB a tensor and sample. Batch 1: x, a, b, and y where a was: 30; the next x fits into b's. Batch 2: no block
    # holds 20, so x, a and b are new.
    taken = reserved_in_one_process(net, gpu="V100-SXM2-16GB", batch_sizes=[1, 2], dtype="fp32")
    assert taken == {1: 30 * MIB, 2: 90 * MIB}
    rows = estimate_rows([net], gpus=["V100-SXM2-16GB"], batch_sizes=[1, 2], dtype="fp32").rows
    assert [r.reserved_bytes for r in rows] == [30 * MIB, 60 * MIB]


def test_the_context_can_be_said(net: Path) -> None:
    def row(context_mib: float | None) -> tuple[int, int]:
        rows = estimate_rows([net], gpus=["T4"], batch_sizes=[1], context_mib=context_mib).rows
        assert rows[0].mreq_bytes is not None and rows[0].context_bytes is not None
        assert rows[0].reserved_bytes is not None
        assert rows[0].mreq_bytes == rows[0].reserved_bytes + rows[0].context_bytes
        return rows[0].context_bytes, rows[0].mreq_bytes

    assert row(512.5)[0] == round(512.5 * MIB)
    assert row(0)[0] == 0
    assert row(None)[0] not in (0, round(512.5 * MIB))
    with pytest.raises(UsageError, match="context_mib: found"):
        row(-1)


VISIBLE_MIB = 16_144
WITHIN_PCT = {"mobilenet_v2": 0.5, "densenet121": 7.0, "gpt2": 1.0, "bloom_560": 20.0, "inception_v3": 35.0}


@pytest.mark.shared
@pytest.mark.parametrize("model", sorted(WITHIN_PCT))
def test_development_models_of_the_thesis(model: str) -> None:
    """Every undamaged row; the margins are the errors reached (0.4, 6.5, 0.7, 17.6 and 33.0 %) rounded up."""
    folder = os.environ.get("GKEST_SHARED")
    if not folder:
        pytest.skip("GKEST_SHARED is not set: the folder with the public graphs and tables is missing")
    shared = Path(folder)
    with open(shared / "data/ethz/v100_profile.csv", newline="") as file:
        table = [r for r in csv.DictReader(file) if r["model"] == model]
    batches = sorted(int(r["batch"]) for r in table)
    taken = reserved_in_one_process(
        shared / f"models/ethz/{model}.onnx", gpu="V100-SXM2-16GB", batch_sizes=batches, dtype="fp32"
    )
    clean = [r for r in table if r["status"] == "clean"]
    assert clean
    for row in clean:
        measured = float(row["mem_cap_pct"]) / 100 * VISIBLE_MIB
        error = 100 * (taken[int(row["batch"])] / MIB / measured - 1)
        assert abs(error) <= WITHIN_PCT[model], (row["batch"], error)
