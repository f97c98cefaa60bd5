"""Estimates of committed and public graphs by GPU, runtime, dtype and batch size, tables and kernels."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from _unchanged_calls import call, committed, digest, inside, spread

__all__ = ["estimates"]

GPUS = ("V100-SXM2-16GB", "T4", "H100-SXM")
# onnxruntime has no autocast, so it refuses amp.
WAYS = tuple(itertools.product(("torch",), ("auto", "fp16", "amp"))) + tuple(
    itertools.product(("onnxruntime",), ("auto", "fp16", "fp32"))
)
SIZES = ("--batch-size", "1,8")
# Graphs whose number of tokens is a symbol.
TOKENS = (
    "float16_encoder",
    "onnxruntime_dynamic_encoder",
    "onnxruntime_optimised_encoder",
    "onnxscript_functions",
)
# Options that change how a graph is run or what is reported, each tried on a few graphs.
VARIANTS = (
    ("--attention", "eager"),
    ("--attention", "fused"),
    ("--no-unfold-batchnorm",),
    ("--streams", "3"),
    ("--sm-share", "10,33,50"),
    ("--host-overhead-us", "2.5", "--context-mib", "300"),
    ("--include-copy",),
    ("--max-batch", "--slo-ms", "40"),
    ("--format", "markdown"),
    ("--format", "table"),
)
SHARED = (
    "ethz/resnet50",
    "ethz/bert",
    "ethz/gpt2",
    "ethz/densenet121",
    "ethz/efficientnet_b7",
    "ethz/xlnet",
    "ethz/bloom_560",
    "timm/swin_tiny_patch4_window7_224",
    "timm/mobilenetv3_large_100",
    "timm3090/maxxvit_rmlp_nano_rw_256",
    "timm3090/convnextv2_tiny",
    "timm3090/xcit_tiny_12_p16_224",
    "timm3090/hrnet_w18_small",
    "llm/llama2_7b_s512",
)


def estimates(folder: Path, quick: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of every estimate; ``quick`` leaves out the public graphs."""
    with inside(folder):
        call(["demo", "--dir", ".", "--gpu", "V100", "--format", "csv"])
        sources = sorted(committed("data/exporters").glob("*.onnx"))
        sources += sorted(committed("data/pattern_exports").glob("*.onnx"))
        small = spread(sources, folder)
        demo = [p.name for p in sorted(folder.glob("*.onnx")) if p.name not in small]
        for name in (*small, *demo):
            yield from _of_graph(name, name.removesuffix(".onnx"))
        for name, options in itertools.product((*demo, "attention.script.onnx"), VARIANTS):
            chosen = () if "--format" in options else ("--format", "json", "--kernels")
            answer = call(["estimate", name, "--gpu", "T4", *SIZES, *options, *chosen])
            yield f"{name} {' '.join(options)}", digest(answer)
        yield from _on_every_gpu(demo[0], "onnxruntime_qdq_vision.onnx")
    if not quick:
        yield from _of_shared(folder)


def _of_graph(path: str, label: str) -> Iterator[tuple[str, str]]:
    asked = ["--dim", "tokens=48"] if label in TOKENS else []
    gpus = [word for gpu in GPUS for word in ("--gpu", gpu)]
    for runtime, dtype in WAYS:
        common = ["estimate", path, *gpus, *SIZES, "--runtime", runtime, "--dtype", dtype, *asked]
        for form, more in (("csv", []), ("json", ["--kernels"])):
            yield f"{label} {runtime} {dtype} {form}", digest(call([*common, "--format", form, *more]))


def _on_every_gpu(plain: str, quantised: str) -> Iterator[tuple[str, str]]:
    """Yield the estimates of a plain and of a quantised graph on every GPU that is shipped."""
    listed = call(["gpus"]).output.decode().split("\n\n")[0].splitlines()[2:]
    runs = ((plain, "torch", "fp32"), (plain, "torch", "amp"), (quantised, "onnxruntime", "int8"))
    for line, (path, runtime, dtype) in itertools.product(listed, runs):
        gpu = line.split()[0]
        asked = [
            "--gpu",
            gpu,
            *SIZES,
            "--runtime",
            runtime,
            "--dtype",
            dtype,
            "--format",
            "json",
            "--kernels",
        ]
        yield f"{path} on {gpu} {runtime} {dtype}", digest(call(["estimate", path, *asked]))


def _of_shared(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the estimates of public graphs, where GKEST_SHARED names their folder."""
    models = Path(os.environ.get("GKEST_SHARED", ""), "models")
    if not os.environ.get("GKEST_SHARED") or not models.is_dir():
        return
    with inside(folder / "shared"):
        for label in SHARED:
            link = Path(label.replace("/", "_") + ".onnx")
            link.symlink_to((models / f"{label}.onnx").resolve())
            yield from _of_graph(str(link), label)
