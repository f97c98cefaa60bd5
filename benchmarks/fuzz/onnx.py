"""Send ONNX files that a stranger might send: mutated as bytes, as protobuf fields and as messages, or built to cost much.

Seeds are small models of every kind that the reader treats apart, files of real exporters, optimisers and quantisers, and
the node tests of the onnx package.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
from onnx import helper

from benchmarks.fuzz.onnx_costly import COSTLY
from benchmarks.fuzz.onnx_texts import TEXTS
from benchmarks.fuzz.wires import mutate_bytes, mutate_wire

_FEW_SEEDS = "few"  # in the variable GKEST_FUZZ_SEEDS: without the node tests, which take 7 s to collect
_EXPORTERS = Path(__file__).parents[2] / "tests" / "data" / "exporters"
_LARGEST_SEED = 200_000
_COLLECT = """
import sys, warnings
warnings.simplefilter("ignore")
from onnx.backend.test.case.node import collect_testcases
for number, case in enumerate(collect_testcases(None)):
    if case.model is not None:
        content = case.model.SerializeToString()
        if len(content) < 20_000:
            open(f"{sys.argv[1]}/node-{number}.onnx", "wb").write(content)
"""

EXTREMES = (0, -1, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
_WORDS = (
    "",
    "SAME_UPPER",
    "NOTSET",
    "linear",
    "i,j->k",
    "...ab,b...->a",
    "a" * 70,
    "\x1b[31m",
    "reflect",
    "bidirectional",
    "é",
)
_TYPES = (
    "Loop", "If", "Scan", "Range", "Tile", "NonZero", "Expand", "Split", "SplitToSequence", "SequenceConstruct", "Pad",
    "Resize", "ConstantOfShape", "Einsum", "LSTM", "GRU", "RNN", "OneHot", "Unique", "TopK", "Reshape", "Concat", "Slice",
    "Gather", "GatherND", "Transpose", "Conv", "ConvTranspose", "MaxPool", "Unsqueeze", "Squeeze", "NoSuchOperator",
    "SequenceMap", "CenterCropPad", "Upsample", "DFT", "STFT", "Attention", "Col2Im", "BatchNormalization", "QLinearConv",
    "NonMaxSuppression", "Sum", "Max", "Optional", "SequenceInsert", "ConcatFromSequence", "MatMul", "Gemm", "Trilu",
)  # fmt: skip
_DOMAINS = ("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "own", "ai.onnx.preview.training")


def prepare(cache: Path) -> None:
    """Write the seeds, and run one estimate so that modules and bundle are loaded."""
    from gkestimator.cli import run

    for name, text in TEXTS.items():
        (cache / f"text-{name}.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    for path in _EXPORTERS.glob("*.onnx"):
        if path.stat().st_size < _LARGEST_SEED:
            (cache / path.name).write_bytes(path.read_bytes())
    if os.environ.get("GKEST_FUZZ_SEEDS") != _FEW_SEEDS:
        subprocess.run([sys.executable, "-c", _COLLECT, str(cache)], check=True)
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        for runtime in ("torch", "onnxruntime", "tensorrt"):
            run(
                [
                    "estimate",
                    str(cache / "text-conv.onnx"),
                    "--gpu",
                    "V100,H100",
                    "--runtime",
                    runtime,
                    "--kernels",
                ]
            )


def case(rng: random.Random, cache: Path, folder: Path) -> Sequence[str]:
    """Write ``model.onnx``, and beside it sometimes a good model; return a command that reads them."""
    names = sorted(os.listdir(cache))
    # node tests are many and alike: half of the cases begin from the others
    if rng.random() < 0.5:
        names = [name for name in names if not name.startswith("node-")]
    data = (cache / rng.choice(names)).read_bytes()
    kind = rng.random()
    if kind < 0.08:
        data = rng.choice(COSTLY)(rng)
    elif kind < 0.25:
        data = mutate_bytes(data, rng)
    elif kind < 0.5:
        data = mutate_wire(data, rng)
    else:
        data = mutate_message(data, rng)
    (folder / "model.onnx").write_bytes(data)
    models = ["model.onnx"]
    # a large model on all GPUs at once is what a user asks for, not what a file does
    gpus = ["V100", "H100", "V100,L4"]
    if len(data) < 100_000:
        gpus.append("all")
    if rng.random() < 0.1:
        (folder / "good.onnx").write_bytes((cache / "text-conv.onnx").read_bytes())
        models.append("good.onnx")
    return _command(rng, models, rng.choice(gpus))


def _command(rng: random.Random, models: list[str], gpus: str) -> list[str]:
    """Return a command on ``models`` with options of all kinds."""
    if rng.random() < 0.12:
        return ["inspect", *models, "--format", rng.choice(("table", "json"))]
    arguments = ["estimate", *models, "--gpu", gpus]
    options: list[tuple[float, list[str]]] = [
        (0.5, ["--runtime", rng.choice(("torch", "onnxruntime", "tensorrt", "onnxruntime_tensorrt"))]),
        (0.3, ["--kernels"]),
        (0.5, ["--batch-size", rng.choice(("1", "2", "2,7", "1000000", "8,64"))]),
        (0.3, ["--dim", rng.choice(("S=16", "tokens=8", "N=3", "S=9223372036854775807", "x=0"))]),
        (0.3, ["--trip-count", rng.choice(("0", "3", "2048", "10000000"))]),
        (0.15, ["--dtype", rng.choice(("fp16", "amp", "int8", "tf32", "bf16", "w4a16"))]),
        (0.1, ["--allow-unknown"]),
        (0.05, ["--cuda-graph"]),
        (0.05, ["--layout", "nhwc"]),
        (0.05, ["--graph-level", "basic"]),
        (0.05, ["--max-batch"]),
        (0.2, ["--format", rng.choice(("csv", "json", "markdown"))]),
        (0.05, ["-o", rng.choice(("out.parquet", "out.csv", "out.html"))]),
    ]
    for probability, words in options:
        if rng.random() < probability:
            arguments += words
    return arguments


def mutate_message(data: bytes, rng: random.Random) -> bytes:
    """Return a model that says hostile things in valid messages."""
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        graph = _some_graph(model.graph, rng)
        try:
            rng.choice(_MUTATIONS)(model, graph, rng)
        except (TypeError, ValueError, IndexError):
            continue  # a number beyond the field, or nothing there to mutate
    return model.SerializeToString()


def _some_graph(graph: onnx.GraphProto, rng: random.Random) -> onnx.GraphProto:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    if inner and rng.random() < 0.6:
        return _some_graph(rng.choice(inner), rng)
    return graph


def _values(graph: onnx.GraphProto) -> list[str]:
    return [
        "",
        *(i.name for i in graph.input),
        *(t.name for t in graph.initializer),
        *(o for n in graph.node for o in n.output),
    ]


def _rewire(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    names = node.input if rng.random() < 0.7 else node.output
    match rng.randrange(3):
        case 0:
            names[rng.randrange(len(names))] = rng.choice(_values(graph))
        case 1:
            names.extend(rng.choices(_values(graph), k=rng.choice((1, 2, 300))))
        case 2:
            del names[rng.randrange(len(names)) :]


def _retype(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    if rng.random() < 0.8:
        node.op_type = rng.choice([*_TYPES, *(n.op_type for n in graph.node)])
    else:
        node.domain = rng.choice(_DOMAINS)


def _change_attribute(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """Set an attribute of a node, its own or any that its operator has, to an extreme of some type."""
    node = rng.choice(graph.node)
    names = [a.name for a in node.attribute]
    with contextlib.suppress(onnx.defs.SchemaError, RuntimeError):
        names += onnx.defs.get_schema(node.op_type, 21, node.domain).attributes
    name = rng.choice([*names, "axis", "axes"])
    kept = [a for a in node.attribute if a.name != name or a.HasField("g")]
    value: Any = rng.choice(
        (
            rng.choice(EXTREMES),
            [rng.choice(EXTREMES) for _ in range(rng.choice((1, 2, 4, 9)))],
            rng.choice((0.0, -1.5, 1e38, float("nan"), float("inf"))),
            rng.choice(_WORDS),
            [rng.choice(_WORDS)] * 3,
            helper.make_tensor("t", 7, [2], [rng.choice(EXTREMES), 1]),
        )
    )
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _change_dims(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    value = rng.choice([*graph.input, *graph.output, *graph.value_info])
    kind = value.type.tensor_type
    match rng.randrange(5):
        case 0:
            for dim in kind.shape.dim:
                if rng.random() < 0.5:
                    dim.dim_value = rng.choice(EXTREMES)
        case 1:
            for dim in kind.shape.dim:
                if rng.random() < 0.5:
                    dim.dim_param = rng.choice(
                        ("N", "batch", "S", "2*N", "N // 0", "a" * 300, "\x1b]0;x\x07", "=1+1")
                    )
        case 2:
            kind.elem_type = rng.randrange(40)
        case 3:
            del kind.shape.dim[rng.randrange(len(kind.shape.dim)) :]
        case 4:
            for _ in range(rng.choice((1, 3, 40))):
                kind.shape.dim.add(dim_value=rng.choice(EXTREMES))


def _change_weight(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    tensors = [*graph.initializer, *(a.t for n in graph.node for a in n.attribute if a.HasField("t"))]
    weight = rng.choice(tensors)
    match rng.randrange(6):
        case 0:
            weight.dims[:] = [rng.choice(EXTREMES) for _ in range(rng.randrange(5))]
        case 1:
            weight.dims[rng.randrange(len(weight.dims))] = rng.choice(EXTREMES)
        case 2:
            weight.data_type = rng.randrange(40)
        case 3:
            weight.raw_data = mutate_bytes(weight.raw_data, rng)
        case 4:
            count = max(1, len(weight.int64_data) or len(weight.raw_data) // 8)
            weight.CopyFrom(
                helper.make_tensor(weight.name, 7, [count], [rng.choice(EXTREMES) for _ in range(count)])
            )
        case 5:
            weight.data_location = onnx.TensorProto.EXTERNAL
            for key, word in (
                ("location", "../../etc/passwd"),
                ("offset", str(rng.choice(EXTREMES))),
                ("length", "x"),
            ):
                weight.external_data.add(key=key, value=word)


def _repeat(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    node = rng.choice(graph.node)
    for number in range(rng.choice((1, 2, 50))):
        copy = graph.node.add()
        copy.CopyFrom(node)
        for place, name in enumerate(node.output):
            if rng.random() < 0.9:
                copy.output[place] = f"{name}_{number}"
                copy.input[0] = name if number == 0 else f"{name}_{number - 1}"


def _reorder(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _nest(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """Put a graph into a node of itself, some times."""
    node = rng.choice(graph.node)
    name = rng.choice(("body", "then_branch", "else_branch"))
    for _ in range(rng.choice((1, 3, 12))):
        inner = onnx.GraphProto()
        inner.CopyFrom(graph)
        if inner.ByteSize() > 100_000:
            return
        node.attribute.append(helper.make_attribute(name, inner))
    node.op_type = rng.choice(("If", "Loop", "Scan", "SequenceMap"))


def _change_opsets(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    for opset in model.opset_import:
        opset.version = rng.choice((1, 5, 6, 7, 9, 11, 13, 18, 21, 23, 99, -1, 2**62))
    if rng.random() < 0.3:
        model.opset_import.add(domain=rng.choice(_DOMAINS), version=rng.choice(EXTREMES))


def _functions(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    """Make an operator of the model a function whose body is of its own nodes: recursion, other opsets, other names."""
    node = rng.choice(graph.node)
    function = model.functions.add(name=node.op_type, domain=node.domain)
    function.input.extend(node.input)
    function.output.extend(node.output)
    function.node.extend(rng.sample(list(graph.node), min(3, len(graph.node))))
    function.opset_import.add(domain="", version=rng.choice((1, 5, 17, 99)))


def _delete(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    group: Any = rng.choice(
        (graph.node, graph.input, graph.output, graph.initializer, model.functions, model.opset_import)
    )
    del group[rng.randrange(len(group))]


def _make_sequence(model: onnx.ModelProto, graph: onnx.GraphProto, rng: random.Random) -> None:
    value = rng.choice([*graph.input, *graph.output])
    inner = onnx.TypeProto()
    inner.CopyFrom(value.type)
    for _ in range(rng.choice((1, 1, 2, 30))):
        wrapped = onnx.TypeProto()
        held = wrapped.sequence_type if rng.random() < 0.6 else wrapped.optional_type
        held.elem_type.CopyFrom(inner)
        inner = wrapped
    value.type.CopyFrom(inner)


_MUTATIONS: tuple[Callable[[onnx.ModelProto, onnx.GraphProto, random.Random], None], ...] = (
    _rewire, _rewire, _retype, _retype, _change_attribute, _change_attribute, _change_attribute, _change_dims, _change_dims,
    _change_weight, _change_weight, _repeat, _reorder, _nest, _change_opsets, _functions, _delete, _make_sequence,
)  # fmt: skip
