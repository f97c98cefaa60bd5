"""``benchmarks/measured_gpu.py``: what is held back from training, and the page of a GPU that follows a known law."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.core.kernels import Family
from gkestimator.evaluation.compared import SummaryRow
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.tables import (
    COLOCATION,
    KERNEL_DATASET,
    REQUIREMENTS,
    CoRun,
    KernelMeasurement,
    Requirement,
    write_table,
)

TESTS = Path(__file__).parents[1]
BATCHES = (2048, 4096)
WIDTH, OUT = 1536, 1024

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xgboost", "lightgbm", "sklearn")),
    reason="training needs the extra train",
)


def network(folder: Path) -> Path:
    """MatMul, Relu, Softmax of a symbolic batch."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", OUT])],
        [
            helper.make_tensor(
                "w", TensorProto.FLOAT, [WIDTH, OUT], np.ones(WIDTH * OUT, np.float32).tobytes(), raw=True
            )
        ],
    )
    folder.mkdir()
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def rows_of_the_network(one: KernelMeasurement) -> list[KernelMeasurement]:
    """Its operators measured at both batch sizes, as the law has them, and a ReLU of one size as a sigmoid."""
    from measured_law import law_us, linear, relu, single, softmax, tensor

    gpu = gpu_catalogue().spec("L4")
    found = []
    for n in BATCHES:
        parts = {"linear": linear(n, OUT, WIDTH), "elementwise": relu(n, OUT), "softmax": softmax(n, OUT)}
        if n == BATCHES[0]:
            parts["elementwise sigmoid"] = single("Sigmoid", [tensor("x", n, OUT)])
        for name, fragment in parts.items():
            family = name.split()[0]
            found.append(
                replace(
                    one,
                    entry_id=f"net-{n}-{name.replace(' ', '-')}",
                    op_type=fragment.op_type,
                    graph=fragment.text(),
                    input_shapes=str([list(t.shape) for t in fragment.tensors]),
                    kernel_index=0,
                    kernels_in_op=1,
                    family=family,
                    duration_us=law_us(fragment, family, gpu),
                )
            )
    return found


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Operators of an L4 and a network whose latency is the sum of what its operators take by the law."""
    from measured_law import measurements

    folder = tmp_path_factory.mktemp("inputs")
    rows = measurements(20, counters=True)
    own = rows_of_the_network(rows[-1])
    noisy = replace(rows[-1], entry_id="noisy", quality="noisy")
    write_table(KERNEL_DATASET, [*rows, *own, noisy], folder / "operators.parquet")
    latency = {
        n: sum(r.duration_us or 0 for r in own if f"net-{n}-" in r.entry_id and "sigmoid" not in r.entry_id)
        / 1e3
        for n in BATCHES
    }
    measured = [
        Requirement(
            model="net", gpu="L4", runtime="torch", dtype="fp32", batch_size=n, latency_ms=latency[n],
            reserved_bytes=10**8, sm_util_mean_pct=80.0, dram_util_mean_pct=50.0, l2_util_mean_pct=30.0,
            occupancy_mean_pct=60.0, source="measured", occupancy_source="analytical", memory_source="measured",
        )
        for n in BATCHES
    ]  # fmt: skip
    write_table(REQUIREMENTS, measured, folder / "measured.parquet")
    return {
        "operators": folder / "operators.parquet",
        "models": folder / "measured.parquet",
        "onnx": network(folder / "onnx"),
    }


def test_a_size_is_that_of_all_operators_and_precisions() -> None:
    from _measured_operators import sizes_of
    from measured_law import conv, kernels_of, linear, relu, single, softmax, tensor

    def size(fragment: object) -> float:
        (kernel,) = kernels_of(fragment)  # type: ignore[arg-type]
        return float(sizes_of([kernel])[0])

    (kernel,) = kernels_of(relu(64, 32))
    half = replace(kernel, element_bytes=2.0, read_bytes=kernel.read_bytes // 2)
    assert sizes_of([kernel])[0] == sizes_of([half])[0]
    assert size(relu(64, 32)) == size(single("Sigmoid", [tensor("x", 32, 64)]))
    assert len({size(f) for f in (relu(64, 32), relu(64, 33), softmax(64, 32), linear(64, 32, 8))}) == 4
    assert size(conv(1, 16, 8)) != size(conv(2, 16, 8))
    assert size(linear(64, 32, 8)) != size(linear(32, 64, 8))


def test_nothing_tested_is_trained_on(inputs: dict[str, Path]) -> None:
    from _measured_operators import read_operators, split

    found = read_operators([inputs["operators"]], [])
    assert (found.entries, found.measured, found.counted) == (88, 87, 87)
    assert dict(found.skipped) == {"a launch noisy or throttled": 1}
    parts = split(found, share=0.3, seed=0)
    assert sorted((*parts.train, *parts.test, *parts.neither)) == list(range(len(found.calls)))
    tested = {size for i in parts.test for size in found.sizes[i]}
    assert parts.test and not any(found.sizes[i] & tested for i in parts.train)
    assert all(found.sizes[i] & tested for i in parts.neither)
    assert 0.15 < len(parts.test) / len(found.calls) < 0.45
    assert split(found, share=0.3, seed=0) == parts != split(found, share=0.3, seed=1)
    relu, sigmoid = (
        next(i for i, c in enumerate(found.calls) if c.entry_id == f"net-{BATCHES[0]}-{name}")
        for name in ("elementwise", "elementwise-sigmoid")
    )
    assert (relu in parts.test) == (sigmoid in parts.test)


def test_another_datasets_operator_of_the_same_name_is_not_trained_on(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    """Its sizes are not looked at: they may be those of a tested model."""
    from _measured_operators import read_operators, without, write_part

    from gkestimator.tables import read_table

    rows = {row.entry_id: row for row in read_table(inputs["operators"], KERNEL_DATASET)}
    one, other = (rows[f"net-{n}-elementwise"] for n in BATCHES)
    write_table(KERNEL_DATASET, [one], tmp_path / "a.parquet")
    write_table(KERNEL_DATASET, [replace(other, entry_id=one.entry_id)], tmp_path / "b.parquet")
    found = read_operators([tmp_path / "a.parquet", tmp_path / "b.parquet"], [])
    alone = read_operators([tmp_path / "b.parquet"], [])
    assert len(found.calls) == 1
    left = without(found, alone.sizes[0])
    written = write_part(found, left, tmp_path / "part")
    assert [row.graph for path in written for row in read_table(path, KERNEL_DATASET)] == [one.graph]


def test_families_are_those_of_the_longest_kernel(inputs: dict[str, Path]) -> None:
    from _measured_operators import read_operators

    found = read_operators([inputs["operators"]], [])
    families = {c.entry_id: family for c, (family, _) in zip(found.calls, found.main, strict=True)}
    assert families[f"net-{BATCHES[0]}-linear"] == Family.LINEAR
    assert families[f"net-{BATCHES[0]}-elementwise"] == Family.ELEMENTWISE


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def cells(text: str, *first: str) -> list[str]:
    """The cells of the table row that begins with ``first``."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(first)} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def known_as_measured(bundle: Path, model: Path) -> set[bool]:
    """Whether the bundle answers the model's kernels by their measured times."""
    from gkestimator.bundles.bundle import load_bundle
    from gkestimator.core.kernels import KernelTable
    from gkestimator.estimation.engine import Engine
    from gkestimator.estimation.recall import ModelSource
    from gkestimator.estimation.request import EstimateRequest

    engine = Engine(EstimateRequest(models=[model], gpus=["L4"], dtype="fp32"))
    for batch in BATCHES:
        engine.lower_model(ModelSource(model, "net"), batch)
    (measured,) = load_bundle(bundle).measured
    assert measured.lowering is not None and len(engine.pool.kernels) == 3 * len(BATCHES)
    found = measured.lowering.find(KernelTable.from_kernels(engine.pool.kernels), "torch")
    return set((found >= 0).tolist())


@pytest.mark.slow
def test_the_page_of_a_known_law(
    inputs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import measured_gpu
    from measured_law import FACTOR

    assert min(FACTOR.values()) > 1.2  # else the base would be right, and nothing could be learned
    runs = [
        CoRun(
            group=f"{i}-{j}", model="net", gpu="L4", runtime="torch", dtype="fp32", batch_size=BATCHES[side],
            sm_share_pct=100.0, latency_alone_ms=1.0, latency_together_ms=1.8 + 0.1 * side, sharing="mps",
        )
        for i in range(2) for j in range(2) for side in (0, 1)
    ]  # fmt: skip
    write_table(COLOCATION, runs, tmp_path / "pairs.parquet")
    arguments = ["--operators", inputs["operators"], "--models", inputs["models"], "--onnx", inputs["onnx"]]
    arguments += [
        "--pairs",
        tmp_path / "pairs.parquet",
        "--keep",
        tmp_path / "kept",
        "-o",
        tmp_path / "report.md",
    ]
    status = measured_gpu.main([str(a) for a in arguments])
    said = capsys.readouterr()
    # One model is too few to fit interference to: that part says so, and the rest is there.
    assert status == 1 and "measured_gpu: " in said.err
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text in said.out
    everything = cells(section(text, "Operators left out"), "all")
    roofline, prior, trained = (float(everything[i]) for i in (2, 3, 6))
    assert trained < 0.6 * prior and roofline > 10
    assert "How groups shared the GPU: 4 mps." in section(text, "What was measured")
    whole = section(text, "Whole models")
    assert "have 6 sizes; 7 of 87 calls hold one of them and are removed in the last row, 80 stay" in whole
    before, known, gone = (
        cells(whole, title, "as assumed")[2:]
        for title in ("public data alone (before)", "all operators", "tested models' sizes removed")
    )
    assert (before[0], known[0], gone[0], gone[1]) == ("–", "87", "80", "2")
    assert float(known[2]) < 8.0 < float(gone[2]) < float(before[2])
    kept = tmp_path / "kept"
    assert known_as_measured(kept / "measured_1", inputs["onnx"]) == {True}
    assert known_as_measured(kept / "measured_2", inputs["onnx"]) == {False}
    verdict = section(text, "Against the bars")
    assert cells(verdict, "distinct operators, quality ok")[2:] == ["87", "missed by 1,913"]
    assert cells(verdict, "groups side by side")[2:] == ["4", "missed by 26"]
    latency = cells(verdict, "median error of latency, host: as assumed")
    missed = float(gone[2]) - 10
    assert latency[1:3] == ["at most 10 %", f"{gone[2]} %"] and missed > 1
    assert abs(float(latency[3].removeprefix("missed by ").removesuffix(" points")) - missed) < 0.11
    # Two rows that wait for the GPU say nothing of the host.
    assert (
        cells(verdict, "median error of latency, host: of the other models")[2] == "rows do not tell the host"
    )
    assert "this project's rule on measured launch geometry" in text


def test_what_was_not_measured_is_said(inputs: dict[str, Path], tmp_path: Path) -> None:
    from _measured_models import read_models
    from _measured_operators import judged, read_operators, split
    from _measured_page import Judged, page

    from gkestimator.bundles.bundle import load_bundle
    from gkestimator.tables import read_table

    bare = [replace(r, achieved_occupancy_pct=None) for r in read_table(inputs["operators"], KERNEL_DATASET)]
    write_table(KERNEL_DATASET, bare, tmp_path / "bare.parquet")
    times = [
        replace(row, reserved_bytes=None, sm_util_mean_pct=None, occupancy_mean_pct=None)
        for row in read_table(inputs["models"], REQUIREMENTS)
    ]
    write_table(REQUIREMENTS, times, tmp_path / "times.parquet")
    operators = read_operators([tmp_path / "bare.parquet"], [])
    models = read_models(
        tmp_path / "times.parquet", [inputs["onnx"]], [], operators.gpu, unfold_batchnorm=False
    )
    parts = split(operators, share=0.3, seed=0)
    before = Judged(
        title="before",
        calls=0,
        operators=judged(operators, parts.test, load_bundle()),
        models=models.judged(None, None),
    )
    nothing = Judged(title="removed", calls=0, operators=None, models=None, why_not="none is left")
    text = page(
        operators=operators, models=models, occurring=models.occurring(), split=parts, shown=[before, nothing, nothing],
        pairs=None, interference=None, inputs=[], seed=0,
    )  # fmt: skip
    verdict = section(text, "Against the bars")
    for bar in (
        "of them with counters", "groups side by side", "median error of reserved memory",
        "median error of latency, host: as assumed", "median error of latency, host: of the other models",
        "median error of mean occupancy, host: as assumed", "median error of mean SM utilisation, host: as assumed",
    ):  # fmt: skip
        assert cells(verdict, bar)[2:] == ["not measured", "not measured"]
    assert section(text, "Models side by side").strip() == "not measured"
    assert "removed: none is left." in text and cells(section(text, "Operators left out"), "all")[6] == "–"
    assert not re.search(r"\bnan\b", text)


@pytest.mark.slow
def test_the_host_of_the_other_models(models: list[Path], tmp_path: Path) -> None:
    """Measured on a host of 12 us a call, estimated with the runtime profile's: what other models tell mends it."""
    from _measured_models import read_models, summaries_with_other_hosts

    from gkestimator.estimation import estimate_rows

    rows = estimate_rows(
        models, gpus=["A100"], batch_sizes=[1, 4, 64], dtype="fp32", host_overhead_us=12.0
    ).rows
    measured = [replace(r, source="measured", latency_low_ms=None, latency_high_ms=None) for r in rows]
    write_table(REQUIREMENTS, measured, tmp_path / "table.parquet")
    gpu = gpu_catalogue().resolve("A100")[0]
    found = read_models(tmp_path / "table.parquet", models, [], gpu, unfold_batchnorm=True)
    assumed = found.judged(None, None)
    told = summaries_with_other_hosts(found, assumed, None)
    assert told is not None

    def error(summaries: Sequence[SummaryRow], measure: str, scope: str = "gpu") -> float:
        (mean,) = {s.mean for s in summaries if (s.measure, s.scope) == (measure, scope)}
        return mean

    assert error(told, "latency_ms") < 2.0 < 30.0 < error(assumed.summarised, "latency_ms")
    assert error(told, "sm_util_mean_pct") < 1.0 < error(assumed.summarised, "sm_util_mean_pct")
    assert {s.name for s in told if s.scope == "model"} == {r.model for r in measured}
    alone = replace(found, rows=found.rows[:3])
    write_table(REQUIREMENTS, alone.rows, tmp_path / "table.parquet")
    assert summaries_with_other_hosts(alone, alone.judged(None, None), None) is None


def test_bars_are_judged_of_what_they_ask_for(inputs: dict[str, Path]) -> None:
    from _measured_models import read_models
    from _measured_operators import read_operators
    from _measured_page import Judged, _verdict

    operators = read_operators([inputs["operators"]], [])
    models = read_models(inputs["models"], [inputs["onnx"]], [], operators.gpu, unfold_batchnorm=False)
    found = models.judged(None, None)
    one = Judged(title="one", calls=1, operators=None, models=found)

    def bars(gpu_is_one: bool = True, rows: int = 1) -> str:
        gpu = operators.gpu if gpu_is_one else replace(operators.gpu, architecture="CPU")
        more = replace(models, rows=models.rows * rows)
        pairs = {"mps": 20, "not said": 9, "time": 30, "cpu": 30}
        return "\n".join(_verdict(replace(operators, gpu=gpu), more, one, pairs))

    assert cells(bars(), "groups side by side")[2:] == ["29", "missed by 1"]  # taking turns is another thing
    assert "rows" not in cells(bars(), "median error of reserved memory")[3]
    assert cells(bars(rows=2), "median error of reserved memory")[3].endswith(", by 2 of 4 rows")
    assert bars(gpu_is_one=False) == "None is judged: a CPU stands in for the GPU."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--operators": "nothing.parquet"}, "nothing.parquet: cannot be read: No such file"),
        ({"--models": "other.csv"}, "other.csv: found models on T4; the operators are of L4"),
        ({"--onnx": "nowhere"}, "nowhere: no such file"),
        ({"--onnx": "stranger.onnx"}, "measured.parquet: none of its rows can be estimated"),
        ({"--host": "host.toml"}, "host.toml: "),
        ({"--pairs": "pairs.csv"}, "pairs.csv: found models on T4; the operators are of L4"),
        ({"--keep": "stranger.onnx"}, "--keep stranger.onnx: found a file, expected a folder"),
        ({"-o": "nowhere/report.md"}, "-o nowhere/report.md: expected a file in a folder that is there"),
        ({"--seed": "-1"}, "--seed: found -1, expected 0 to"),
        ({"--pairs": "none.parquet"}, "none.parquet: cannot be read: No such file"),
    ],
)
def test_wrong_input_is_one_line(
    inputs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str],
    words: str,
) -> None:
    import measured_gpu

    from gkestimator.tables import read_table

    monkeypatch.chdir(tmp_path)
    other = [replace(row, gpu="T4") for row in read_table(inputs["models"], REQUIREMENTS)]
    write_table(REQUIREMENTS, other, tmp_path / "other.csv")
    run = CoRun(
        group="g", model="net", gpu="T4", runtime="torch", dtype="fp32", batch_size=1, latency_alone_ms=1.0
    )
    write_table(COLOCATION, [run, run], tmp_path / "pairs.csv")
    (tmp_path / "stranger.onnx").write_bytes(b"not a model")
    given = {f"--{name}": str(path) for name, path in inputs.items()} | change
    assert measured_gpu.main([word for pair in given.items() for word in pair]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if words.split(": ")[0] in line]
    assert line.startswith("measured_gpu: ") and words in line
