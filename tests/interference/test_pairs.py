"""Co-location tables: what is read of them, where demands come from, what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from _pairs import V100, pairs, requirement, written

from gkestimator.core.errors import TableError
from gkestimator.interference.contention import Contention
from gkestimator.interference.pairs import read_pairs
from gkestimator.tables import COLOCATION, REQUIREMENTS, CoRun, write_table

A, B = (r for r in pairs(Contention(), models=2, shares=(100.0,)) if r.group == "m0+m1@100")
UNKNOWN: dict[str, Any] = dict.fromkeys(("sm_util_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct"))


def test_a_pair_is_two_measurements(tmp_path: Path) -> None:
    first, second = read_pairs(written(tmp_path / "p.csv", [A, B]))
    assert (first.models, second.models) == (("m0", "m1"), ("m1", "m0"))
    assert first.gpu == V100
    law = Contention()
    assert first.own == law.features(requirement(A)) and first.others == law.features(requirement(B))
    assert A.latency_together_ms is not None
    assert first.slowdown == A.latency_together_ms / A.latency_alone_ms


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_every_form_says_the_same(tmp_path: Path, form: str) -> None:
    assert read_pairs(written(tmp_path / f"p.{form}", [A, B])) == read_pairs(
        written(tmp_path / "x.csv", [A, B])
    )


@pytest.mark.parametrize("form", ["csv", "json"])
def test_files_of_before_sharing_are_read(tmp_path: Path, form: str) -> None:
    old = tmp_path / f"old.{form}"
    kept = [f.name for f in fields(CoRun) if f.name != "sharing"]
    rows = [{name: getattr(r, name) for name in kept} | {"schema_version": 1} for r in (A, B)]
    if form == "json":
        old.write_text(json.dumps({"schema_version": 1, "rows": rows}))
    else:
        with old.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, kept)
            writer.writeheader()
            writer.writerows(rows)
    new = written(tmp_path / "new.csv", [A, B])
    assert read_pairs(old) == read_pairs(new)
    # A program that does not know the column is told by the version.
    assert new.read_text().splitlines()[1].startswith(f"{COLOCATION.version},")
    old.write_text(
        old.read_text().replace('"schema_version": 1', '"schema_version": 3').replace("\n1,", "\n3,")
    )
    with pytest.raises(TableError, match="schema_version: found 3, expected 1, 2 or"):
        read_pairs(old)


def test_three_side_by_side_and_one_that_was_not_timed(tmp_path: Path) -> None:
    third = replace(B, model="m2", latency_together_ms=None)
    first, _ = read_pairs(written(tmp_path / "p.csv", [A, B, third]))
    assert first.models == ("m0", "m1", "m2")
    b, c = (Contention().features(requirement(r)) for r in (B, third))
    assert first.others == tuple(x + y for x, y in zip(b, c, strict=True))


def test_demands_come_from_the_table_where_the_pairs_have_none(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    write_table(REQUIREMENTS, [requirement(A), requirement(B)], table)
    bare = [replace(r, **UNKNOWN) for r in (A, B)]
    expected = read_pairs(written(tmp_path / "p.csv", [A, B]))
    assert read_pairs(written(tmp_path / "q.csv", bare), [table]) == expected
    # What the pairs know goes first.
    own = [replace(bare[0], dram_util_mean_pct=99.0), bare[1]]
    assert read_pairs(written(tmp_path / "q.csv", own), [table])[0].own[1] == 0.99
    # Another name of the same GPU.
    short = [replace(r, gpu="Tesla V100-SXM2-16GB") for r in bare]
    assert read_pairs(written(tmp_path / "q.csv", short), [table]) == expected


def test_dims_choose_among_rows(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    two = [replace(requirement(A), dims=f"seq={n}", dram_util_mean_pct=n) for n in (10.0, 20.0)]
    write_table(REQUIREMENTS, [*two, requirement(B)], table)
    bare = [replace(r, **UNKNOWN) for r in (A, B)]
    with pytest.raises(TableError, match=r"row 1: found 2 rows for m0 .*column dims chooses"):
        read_pairs(written(tmp_path / "p.csv", bare), [table])
    chosen = [replace(bare[0], dims="seq=20.0"), bare[1]]
    assert read_pairs(written(tmp_path / "p.csv", chosen), [table])[0].own[1] == 0.2


BAD: dict[str, tuple[Callable[[], list[CoRun]], str]] = {
    "alone": (lambda: [A], r"row 1, column group: found 1 row of group .*expected 2 to 16"),
    "crowd": (lambda: [A] * 17, "found 17 rows of group"),
    "two GPUs": (lambda: [A, replace(B, gpu="T4")], r"row 2, column gpu: found 'T4', expected 'V100"),
    "unknown GPU": (lambda: [replace(r, gpu="V1000") for r in (A, B)], "row 1, column gpu: .*V1000"),
    "no time alone": (
        lambda: [replace(A, latency_alone_ms=0.0), B],
        "row 1, column latency_alone_ms: found 0, expected more than 0",
    ),
    "times exchanged": (
        lambda: [A, replace(B, latency_together_ms=B.latency_alone_ms / 3)],
        r"row 2, column latency_together_ms: found .*expected no less than 0.5 times",
    ),
    "units mixed": (
        lambda: [A, replace(B, latency_together_ms=B.latency_alone_ms * 2e3)],
        r"row 2, column latency_together_ms: found .*expected at most 1000 times",
    ),
    "beyond all bounds": (
        lambda: [replace(A, latency_alone_ms=1e-300, latency_together_ms=1e300), B],
        "row 1, column latency_together_ms: found 1e\\+300",
    ),
    "more than there is": (
        lambda: [A, replace(B, dram_util_mean_pct=1e300)],
        "row 2: dram_util_mean_pct of m1: found 1e\\+300, expected percent of the peak",
    ),
    "no share": (
        lambda: [A, replace(B, sm_share_pct=0.0)],
        "row 2, column sm_share_pct: found 0, expected more than 0",
    ),
    "nothing measured": (
        lambda: [replace(r, latency_together_ms=None) for r in (A, B)],
        "found no measured slowdown",
    ),
    "no rows": (list, "found no measured slowdown"),
    "demand unknown": (
        lambda: [A, replace(B, sm_util_mean_pct=None)],
        "row 2, column sm_util_mean_pct: found nothing, expected a number or a table",
    ),
    "by turns": (
        lambda: [A, replace(B, sharing="time")],
        r"row 2, column sharing: found 'time', expected mps \(models that take turns",
    ),
    "on a CPU": (
        lambda: [replace(r, sharing="cpu") for r in (A, B)],
        "row 1, column sharing: found 'cpu', expected mps",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_pairs_are_one_line(tmp_path: Path, what: str) -> None:
    runs, said = BAD[what]
    with pytest.raises(TableError, match=said) as e:
        read_pairs(written(tmp_path / "p.csv", runs()))
    assert "\n" not in str(e.value) and "p.csv" in str(e.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found an empty file"),
        ("group,model\na,b\n", "columns gpu, runtime, dtype, latency_alone_ms missing"),
        ("group,model,slowdown\na,b,1.2\n", "column 'slowdown' is not known to the co-location table"),
        ("group,model,gpu,runtime,dtype,latency_alone_ms\na,b,T4,torch,fp32,-1\n", "expected at least 0"),
        (
            "group,model,gpu,runtime,dtype,latency_alone_ms\na,b,T4,torch,fp32,nan\n",
            "expected a finite number",
        ),
        ("group,model,gpu,runtime,dtype,latency_alone_ms\na,b,T4,torch,fp32\n", "found 5 cells, expected 6"),
    ],
)
def test_a_broken_table_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=said) as e:
        read_pairs(path)
    assert "\n" not in str(e.value)


def test_a_row_that_the_table_lacks_or_leaves_open(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    bare = written(tmp_path / "p.csv", [replace(r, **UNKNOWN) for r in (A, B)])
    write_table(REQUIREMENTS, [requirement(A)], table)
    with pytest.raises(TableError, match=r"row 2: found 0 rows for m1 on V100.*at batch 8, 100 %.*t.csv"):
        read_pairs(bare, [table])
    write_table(REQUIREMENTS, [requirement(A), replace(requirement(B), sm_util_mean_pct=None)], table)
    with pytest.raises(TableError, match="row 2: sm_util_mean_pct is null for m1"):
        read_pairs(bare, [table])


def test_under_mps_is_side_by_side(tmp_path: Path) -> None:
    said = [replace(r, sharing="mps") for r in (A, B)]
    assert read_pairs(written(tmp_path / "p.csv", said)) == read_pairs(written(tmp_path / "q.csv", [A, B]))


def test_bandwidth_that_nobody_measured_is_not_known(tmp_path: Path) -> None:
    """A measured table without counters: SM utilisation alone."""
    table = tmp_path / "t.csv"
    bare = [replace(requirement(r), dram_util_mean_pct=None, l2_util_mean_pct=None) for r in (A, B)]
    write_table(REQUIREMENTS, bare, table)
    nothing = written(tmp_path / "p.csv", [replace(r, **UNKNOWN) for r in (A, B)])
    found = read_pairs(nothing, [table])
    assert [m.known for m in found] == [False, False]
    assert [m.own for m in found] == [Contention().features(r) for r in bare]
    # In the pairs' own rows, with a table that lacks the model and without any.
    own = written(
        tmp_path / "q.csv", [replace(r, dram_util_mean_pct=None, l2_util_mean_pct=None) for r in (A, B)]
    )
    write_table(REQUIREMENTS, [requirement(replace(A, model="another"))], table)
    assert read_pairs(own) == found == read_pairs(own, [table])
    # Known of one alone: the pair as a whole is not.
    half = written(tmp_path / "r.csv", [A, replace(B, l2_util_mean_pct=None)])
    assert [m.known for m in read_pairs(half)] == [False, False]
    assert [m.known for m in read_pairs(written(tmp_path / "s.csv", [A, B]))] == [True, True]


def side(name: str, **more: object) -> dict[str, object]:
    """A row of ``measure_gpu.py coloc``."""
    return {
        "schema_version": 1, "gpu": "Tesla V100-SXM2-16GB", "driver": "550", "cuda": "12.4", "runtime": "torch",
        "runtime_version": "2.4", "mode": "mps", "mps_note": None, "dtype": "fp16", "dims": '{"seq": 512}', "kind": "pair",
        "what": f"pair {name}", "pair": 1, "side": "A", "model": name, "batch_size": 8, "other_model": "x",
        "other_batch_size": 8, "sm_share_pct": 100.0, "other_sm_share_pct": 100.0, "sms_visible": 80, "p50_ms": 14.0,
        "p90_ms": 15.0, "p99_ms": 16.0, "mean_ms": 14.1, "iterations": 100, "alone_p50_ms": 9.0,
        "alone_same_share_p50_ms": 10.0, "slowdown": 1.5, "slowdown_same_share": 1.4, "throughput_rps": 560.0,
        "error": None, **more,
    }  # fmt: skip


def coloc(path: Path, rows: list[dict[str, object]]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def test_what_measure_gpu_wrote_is_read(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    write_table(REQUIREMENTS, [requirement(A), requirement(B)], table)
    rows = [
        side("m0", kind="alone", side=None),
        side("m0"),
        side("m1", side="B", p50_ms=20.0),
        # A resumed run counts its pairs from 1 again.
        side("m1", p50_ms=12.0),
        side("m0", side="B", p50_ms=13.0),
        # One side broke off: the pair is not known.
        side("m0"),
        side("m1", side="B", p50_ms=None, error="CUDA error"),
    ]
    found = read_pairs(coloc(tmp_path / "coloc-000.parquet", rows), [table])
    assert [m.models for m in found] == [("m0", "m1"), ("m1", "m0"), ("m1", "m0"), ("m0", "m1")]
    assert [m.slowdown for m in found] == pytest.approx([1.4, 2.0, 1.2, 1.3])
    assert len({m.group for m in found}) == 2
    assert found[0].own == Contention().features(requirement(A))


def test_taking_turns_is_not_side_by_side(tmp_path: Path) -> None:
    rows = [side("m0", mode="timeslice"), side("m1", side="B", mode="timeslice")]
    with pytest.raises(TableError, match="row 1, column mode: found 'timeslice', expected mps"):
        read_pairs(coloc(tmp_path / "coloc-000.parquet", rows))
