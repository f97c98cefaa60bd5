"""Change workloads, clusters, plans, tables, traces, GPU files and specs, and give them to the commands that read them."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import yaml

from benchmarks.fuzz.mutating import changed_bytes, changed_values, dumped
from gkestimator.cli import run
from gkestimator.exporting.registry import EXPORTERS
from gkestimator.placement.registry import POLICIES
from gkestimator.tables import REQUIREMENTS, read_table, write_table

_REPOSITORY = Path(__file__).parents[2]
_V100 = "V100-SXM2-16GB"
_WORKLOAD = {
    "models": [
        {"name": "resnet50", "rate_rps": 300, "slo_ms": 100},
        {"name": "mobilenet_v2", "rate_rps": 200, "slo_ms": 60, "weight": 2},
    ],
    "applications": [
        {
            "name": "game",
            "rate_rps": 20,
            "slo_ms": 200,
            "models": [{"model": "resnet50"}, {"model": "mobilenet_v2", "after": ["resnet50"], "fan_out": 2}],
        }
    ],
}
_FIXED = {"gpus": [{"type": _V100, "count": 2}, {"type": "T4", "count": 1}]}
_RENTED = {
    "elastic": [{"type": _V100, "price_per_hour": 3.06}, {"type": "T4", "price_per_hour": 0.5, "limit": 8}]
}
_COMPARISON = {
    "schema_version": 1,
    "tables": ["table.csv"],
    "policies": ["exclusive", {"name": "gkest", "label": "b", "options": {"burst": 2}}],
    "workloads": [{"label": "w", "models": [{"name": "resnet50", "rate_rps": 30, "slo_ms": 200}]}],
    "clusters": [{"label": "f", "gpus": [{"type": _V100, "count": 1}]}],
    "arrivals": [
        "poisson",
        {"kind": "mmpp", "label": "m", "burst_factor": 3, "burst_share": 0.1, "burst_s": 2},
    ],
    "rate_scale": [0.5],
    "duration_s": 2,
    "warmup_s": 0,
}
_LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}
_YAML = {
    "workload.yaml": _WORKLOAD,
    "models.yaml": {"models": _WORKLOAD["models"]},
    "fixed.yaml": _FIXED,
    "rented.yaml": _RENTED,
    "compare.yaml": _COMPARISON,
}


def _table() -> bytes:
    rows: list[dict[str, Any]] = []
    costs = (("resnet50", 1.0), ("mobilenet_v2", 0.4))
    for (model, cost), (gpu, slower) in itertools.product(costs, ((_V100, 1.0), ("T4", 3.0))):
        for batch, share in itertools.product((1, 4, 16), (20, 50, 100)):
            latency = cost * slower * (1 + 0.4 * batch) * (0.4 + 60 / share)
            row = {"model": model, "gpu": gpu, "runtime": "onnxruntime", "dtype": "fp32", "batch_size": batch}
            row |= {"sm_share_pct": share, "latency_ms": latency, "throughput_rps": 1e3 * batch / latency}
            row |= {
                "sm_util_mean_pct": min(share, 20),
                "sm_util_max_pct": min(share, 40),
                "occupancy_mean_pct": 30,
            }
            row |= {"occupancy_max_pct": 50, "dram_util_mean_pct": 20, "mreq_bytes": 700_000_000 + batch}
            row |= {"mreq_pct": 4.4, "source": "measured"}
            rows.append(row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def prepare(cache: Path) -> None:
    """Write valid documents of every kind, made by the tool itself where it writes them."""
    (cache / "table.csv").write_bytes(_table())
    rows = read_table(cache / "table.csv", REQUIREMENTS)
    for form in ("json", "parquet"):
        write_table(REQUIREMENTS, rows, cache / f"table.{form}")
    for name, document in _YAML.items():
        (cache / name).write_text(yaml.safe_dump(document, sort_keys=False))
    for name, document in (("llama.json", _LLAMA), ("workload.json", _WORKLOAD)):
        (cache / name).write_text(json.dumps(document))
    shutil.copy(_REPOSITORY / "datasets/gpus/T4.toml", cache / "gpu.toml")
    shutil.copy(_REPOSITORY / "examples/network.toml", cache)
    shutil.copy(_REPOSITORY / "examples/igniter-coefficients.toml", cache)
    shutil.copy(_REPOSITORY / "examples/lengths/bert-base.csv", cache / "lengths.csv")
    lengths = yaml.safe_load((_REPOSITORY / "examples/lengths/bert-base.yaml").read_text())
    (cache / "lengths.yaml").write_text(yaml.safe_dump({**lengths, "duration_s": 5}))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> resnet50 (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y) { y = Relu(x) }'
    )
    for name in ("resnet50", "mobilenet_v2"):
        onnx.save(model, cache / f"{name}.onnx")
    times = [f"{i / 40},{('resnet50', 'mobilenet_v2', 'game')[i % 3]}" for i in range(200)]
    (cache / "trace.csv").write_text("\n".join(["time_s,model", *times]) + "\n")
    with contextlib.chdir(cache), open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        for arguments in (
            "schedule table.csv --workload workload.yaml --cluster fixed.yaml --policy gkest -o plan.json",
            "simulate plan.json --table table.csv --duration-s 3 -o simulated.json",
            "schedule table.csv --workload models.yaml --cluster fixed.yaml --policy gkest -o models.json",
            "simulate models.json --table table.csv --duration-s 3 --requests log.csv --quiet",
            "export plan.json --to hami -o exported",
            "llm llama.json --gpu T4 --batch 1 --input 128 --output 16",
            "evaluate --truth table.csv --models resnet50.onnx --models mobilenet_v2.onnx",
            "evaluate --serving log.csv --table table.csv --plan models.json -o law.toml",
            "compare models.json --table table.csv --against log.csv",
            "estimate resnet50.onnx --gpu T4 --gpu-spec gpu.toml",
            "lengths lengths.yaml --table lengths.csv",
            "compare compare.yaml --processes 1 -o compared --quiet",
            "report plan.json -o plan.html",
            "gpus --gpu-spec gpu.toml T4",
            "diff table.csv table.json",
        ):
            if run(arguments.split()):
                raise RuntimeError(f"gkest {arguments}: expected to work on valid documents")


def _commands(rng: random.Random) -> list[tuple[str, str]]:
    """Return (the file that is changed, the command that reads it)."""
    policy = rng.choice(list(POLICIES))
    cluster = rng.choice(("fixed.yaml", "rented.yaml"))
    target = rng.choice(list(EXPORTERS))
    table = rng.choice(("table.csv", "table.json", "table.parquet"))
    place = f"schedule {{}} --workload workload.yaml --cluster {cluster} --policy {policy} -o out.json"
    serve = "simulate plan.json --table table.csv --duration-s 1"
    return [
        (table, place.format(table)),
        ("workload.yaml", place.format("table.csv")),
        (cluster, place.format("table.csv")),
        ("plan.json", serve),
        (table, serve.replace("table.csv", table)),
        ("network.toml", f"{serve} --network network.toml"),
        (
            "igniter-coefficients.toml",
            f"{serve} --interference igniter --coefficients igniter-coefficients.toml",
        ),
        ("trace.csv", f"{serve} --arrivals trace.csv"),
        ("trace.csv", f"{serve} --arrivals trace.csv --trace-scaling time --trace-rates plan --trace-loop"),
        ("plan.json", f"export plan.json --to {target} -o exported"),
        (table, f"export {table} --to {target} -o exported"),
        ("plan.json", "report plan.json -o out.html"),
        ("simulated.json", "report simulated.json -o out.html"),
        (table, f"report {table} -o out.html"),
        (table, f"diff table.csv {table}"),
        (table, f"evaluate --truth {table} --models resnet50.onnx --models mobilenet_v2.onnx"),
        ("log.csv", "evaluate --serving log.csv --table table.csv --plan models.json -o law.toml"),
        ("gpu.toml", "estimate resnet50.onnx --gpu T4 --gpu-spec gpu.toml"),
        ("log.csv", "compare models.json --table table.csv --against log.csv"),
        ("compare.yaml", "compare compare.yaml --processes 1 -o compared"),
        ("llama.json", "llm llama.json --gpu T4 --batch 1,8 --input 128 --output 16"),
        ("gpu.toml", "gpus --gpu-spec gpu.toml T4"),
        ("gpu.toml", "llm llama.json --gpu T4 --gpu-spec gpu.toml --input 64 --output 8"),
        ("lengths.yaml", "lengths lengths.yaml --table lengths.csv"),
        ("lengths.csv", "lengths lengths.yaml --table lengths.csv"),
    ]


def _changed(rng: random.Random, path: Path) -> bytes:
    content = path.read_bytes()
    if rng.random() < 0.35 or path.suffix in (".toml", ".parquet"):
        return changed_bytes(rng, content)
    if path.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(content.decode())))
        changed = changed_values(rng, rows)
        text = io.StringIO(newline="")
        if isinstance(changed, list):
            csv.writer(text).writerows(row if isinstance(row, list) else [row] for row in changed)
        return text.getvalue().encode("utf-8", "replace")
    document = changed_values(rng, yaml.safe_load(content))
    if path.suffix == ".json" or rng.random() < 0.3:
        return dumped(document)
    try:
        return bytes(yaml.safe_dump(document, sort_keys=False, encoding="utf-8"))
    except UnicodeEncodeError:
        return dumped(document)


def case(rng: random.Random, cache: Path, folder: Path) -> Sequence[str]:
    """Return a command on the valid documents, one of which is changed."""
    name, command = rng.choice(_commands(rng))
    for word in {name, *command.split(), "table.csv"}:
        if (cache / word).is_file():
            shutil.copy(cache / word, folder)
    (folder / name).write_bytes(_changed(rng, cache / name))
    return command.split()
