"""Make the files of this folder with the commands of gkestimator 0.1.

They were written once, by the code of commit 3e7ddb5 (before a table's version followed its columns), and stay as
they are: the tests read them to see that what users keep still loads. The script is the record of how they came
about. Run it at that commit, in an environment with the extras that it names::

    python tests/data/written_by_0_1/make.py NEW_FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[3]
for folder in ("benchmarks", "tests/simulation/interference", "tests/training"):
    sys.path.append(str(ROOT / folder))

WORKLOAD = """models:
- {name: small, rate_rps: 200, slo_ms: 50}
- {name: large, rate_rps: 100, slo_ms: 80}
"""
CLUSTER = "gpus: [{type: T4, count: 2}]\n"
COMPARISON = {
    "tables": ["requirements.csv"],
    "policies": ["exclusive", "nexus"],
    "workloads": [{"label": "two", "models": [{"name": "small", "rate_rps": 200, "slo_ms": 50}]}],
    "clusters": [{"label": "pair", "gpus": [{"type": "T4", "count": 2}]}],
    "duration_s": 2,
}
OWN_GPU_NAME = "MY-GPU"
GKEST = str(Path(sys.executable).with_name("gkest"))


def main(out: Path) -> None:
    out.mkdir(parents=True)
    os.chdir(out)
    models()
    tables()
    documents()
    profiled()
    bundles()
    without_this_machine()


def without_this_machine() -> None:
    """Take this machine's paths and name out of what was recorded, and the log files, which are empty."""
    for path in (*Path().glob("raw*/run.json"), Path("pairs.csv.journal.jsonl")):
        path.write_text(path.read_text().replace(GKEST, "gkest"))
    for path in (*Path().glob("raw*/lock"), *Path().glob("raw*/chunks/*/child.log")):
        path.unlink()


def gkest(*arguments: str) -> None:
    """Run the command as users do, and stop where it fails."""
    subprocess.run([GKEST, *arguments], check=True)


def models() -> None:
    """Write two small models of one trunk, with their weights."""
    Path("models").mkdir()
    for name, last in (("small", 16), ("large", 24)):
        rng = np.random.default_rng(1)
        first = numpy_helper.from_array(rng.normal(size=(32, 16)).astype(np.float32), "w0")
        second = numpy_helper.from_array(rng.normal(size=(16, last)).astype(np.float32), "w1")
        nodes = [
            helper.make_node("MatMul", ["x", "w0"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "w1"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", last])],
            [first, second],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, f"models/{name}.onnx")


def tables() -> None:
    """Write requirement tables, estimated and published, and kernel listings, in every form."""
    ask = ["estimate", "models", "--gpu", "T4", "--gpu", "V100", "--batch-size", "1,4,16"]
    for form in ("csv", "json", "parquet"):
        gkest(*ask, "-o", f"requirements.{form}")
        gkest("estimate", "models", "--gpu", "T4", "--batch-size", "4", "--kernels", "-o", f"kernels.{form}")
    published = (ROOT / "datasets" / "published" / "ethz_v100.csv").read_text().splitlines(keepends=True)
    Path("published.csv").write_text("".join(published[:7]))


def documents() -> None:
    """Write workload, cluster, plan, simulations, comparison, host, GPU, coefficients, exports and a merged plan."""
    Path("workload.yaml").write_text(WORKLOAD)
    Path("cluster.yaml").write_text(CLUSTER)
    igniter = (ROOT / "examples" / "igniter-coefficients.toml").read_text()
    for example, ours in (
        ("V100-SXM2-16GB", "T4"),
        ('"resnet50"', '"small"'),
        ("kernels = 174", "kernels = 3"),
    ):
        igniter = igniter.replace(example, ours)
    Path("igniter-coefficients.toml").write_text(igniter)
    shutil.copy(ROOT / "examples" / "network.toml", "network.toml")
    own = (ROOT / "datasets" / "gpus" / "T4.toml").read_text()
    own = own.replace('name = "T4"', f'name = "{OWN_GPU_NAME}"', 1)
    own = own.replace('aliases = ["Tesla T4", "T4-16GB"]', "aliases = []", 1)
    Path("my-gpu.toml").write_text(own)
    asked = ["--workload", "workload.yaml", "--cluster", "cluster.yaml"]
    gkest("schedule", "requirements.csv", *asked, "--runtime", "torch", "-o", "plan.json")
    gkest(
        "simulate", "plan.json", "--table", "requirements.csv", "--duration-s", "5", "-o", "simulation.json"
    )
    Path("comparison.yaml").write_text(json.dumps(COMPARISON, indent=1) + "\n")
    gkest("compare", "comparison.yaml", "-o", "comparison", "--processes", "1")
    for picture in Path("comparison").glob("*.svg"):
        picture.unlink()
    gkest(
        "merge", "--plan", "plan.json", "models/small.onnx", "models/large.onnx", "--always", "-o", "merged"
    )
    one_row_a_model = ["--gpu", "T4", "--batch-size", "4"]
    gkest("export", "requirements.csv", "--to", "json", *one_row_a_model, "-o", "exported")
    truth = ["--truth", "measured_requirements.csv", "--models", "models", "--gpu", "T4"]
    measured_requirements()
    gkest("evaluate", *truth, "--write-host", "host.toml")


def measured_requirements() -> None:
    """Write the table's rows as though a GPU had taken a fifth longer."""
    from dataclasses import replace

    from gkestimator.tables import REQUIREMENTS, read_table, write_table

    rows = [r for r in read_table(Path("requirements.csv"), REQUIREMENTS) if r.gpu == "T4"]
    measured = []
    for row in rows:
        assert row.latency_ms is not None
        measured.append(replace(row, latency_ms=1.2 * row.latency_ms, source="measured", coverage_pct=None))
    write_table(REQUIREMENTS, measured, Path("measured_requirements.csv"))


def profiled() -> None:
    """Write sweep plans, raw folders (one cut off midway, one of launches) with dataset, and pairs with journal."""
    plan = ["profile", "plan", "--models", "models", "--cpu", "--runtime", "onnxruntime"]
    gkest(*plan, "--whole", "--batch-size", "1,4", "-o", "sweep.json")
    run = [
        "profile",
        "run",
        "sweep.json",
        "--executor",
        "onnxruntime",
        "--collector",
        "none",
        "--device",
        "cpu",
    ]
    run += ["--chunk-seconds", "0.5"]
    gkest(*run, "-o", "raw")
    gkest("profile", "table", "raw", "-o", "measured_cpu.csv")
    cut_off([*run, "-o", "raw_cut_off"])
    from _synthetic_raw import small_run

    small_run(Path("raw_launches"))
    gkest("profile", "build", "raw_launches", "-o", "kernel_dataset.parquet")
    pairs = ["profile", "pairs", "sweep.json", "--device", "cpu", "--seconds", "0.2", "--pairs", "2"]
    gkest(*pairs, "-o", "pairs.csv")


def cut_off(arguments: list[str]) -> None:
    """Run ``arguments`` and kill them after the first chunk."""
    run = subprocess.Popen([GKEST, *arguments], start_new_session=True)
    while run.poll() is None and not list(Path(arguments[-1]).glob("chunks/[!.]*")):
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def bundles() -> None:
    """Train a bundle of each kind on tiny datasets, and coefficients of interference on made-up pairs."""
    from _pairs import pairs, written
    from measured_law import measurements, write_dataset

    from gkestimator.documents.interference import ContentionWeights
    from gkestimator.simulation.interference.contention import Contention

    law = ContentionWeights(
        sm_overlap=0.3, sm_excess=0.8, dram_overlap=0.5, dram_excess=1.2, l2_overlap=0.2, l2_excess=0.6
    )
    written(Path("colocation.csv"), pairs(Contention(law), noise=0.02))
    gkest("train", "--interference", "colocation.csv", "-o", "interference.yaml")
    colocation_1()
    write_dataset(Path("l4.parquet"), measurements(12, counters=True))
    public_rows()
    pairs_too = ["--interference", "colocation.csv"]
    gkest("train", "public", "-o", "trained_bundle")
    gkest("train", "l4.parquet", "--base", "trained_bundle", *pairs_too, "-o", "measured_bundle")
    shutil.rmtree("trained_bundle")  # measured_bundle/base is the same
    shutil.rmtree("public")
    Path("l4.parquet").unlink()


def public_rows() -> None:
    """Write a folder in the format of aiconfigurator: matrix products that follow a law on two GPUs."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    count = 220
    m, n, k = (np.exp(rng.uniform(np.log(16), np.log(8192), count)).round() for _ in range(3))
    gpu = rng.choice(["h100_sxm", "a100_sxm"], count)
    rate = np.where(gpu == "h100_sxm", 7e14, 2e14)
    latency_ms = (2 * m * n * k / rate + 4e-6) * 1e3 * np.exp(rng.normal(0, 0.03, count))
    Path("public").mkdir()
    table = pyarrow.table({"gpu": gpu, "m": m, "n": n, "k": k, "latency_ms": latency_ms})
    pyarrow.parquet.write_table(table, "public/gemm_bf16.parquet")


def colocation_1() -> None:
    """Write the pairs as version 1 had them: without the column ``sharing``."""
    import csv

    with open("colocation.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with open("colocation_1.csv", "w", newline="") as stream:
        names = [n for n in rows[0] if n != "sharing"]
        writer = csv.DictWriter(stream, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"schema_version": "1"} for row in rows[:20])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
