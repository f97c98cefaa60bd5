"""4,000 mutated model files: each is estimated or refused with one line, in bounded time and memory.

Half are mutated as bytes (what a broken download or a fuzzer sends), half as messages (valid files that say hostile
things: huge dims, swapped names, changed attributes, operators and types). Seeds are small models of every kind that
the reader treats apart and files of real exporters, optimisers and quantisers.
"""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx.parser
import pytest

from gkestimator.core.errors import GkestimatorError
from gkestimator.estimation import estimate_rows

FILES = 4000
SECONDS_PER_FILE = 20
EXTRA_MEMORY = 3 << 30

TEXTS = {
    "conv": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 3, 32, 32] x, float[8, 3, 3, 3] w, float[8] b, float[10, 8] f) => (float[N, 10] y) {
          c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)
          r = Relu (c)
          p = GlobalAveragePool (r)
          t = Flatten (p)
          y = Gemm <transB = 1> (t, f)
        }""",
    "attention": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, S, 64] x, float[64, 64] wq, float[64, 64] wk, float[64, 64] wv) => (float[N, S, 64] y)
        <int64[4] heads = {0, 0, 4, 16}, int64[3] merged = {0, 0, 64}, float scale = {4.0}> {
          q = MatMul (x, wq)
          k = MatMul (x, wk)
          v = MatMul (x, wv)
          qr = Reshape (q, heads)
          kr = Reshape (k, heads)
          vr = Reshape (v, heads)
          qt = Transpose <perm = [0, 2, 1, 3]> (qr)
          kt = Transpose <perm = [0, 2, 3, 1]> (kr)
          vt = Transpose <perm = [0, 2, 1, 3]> (vr)
          s = MatMul (qt, kt)
          d = Div (s, scale)
          m = Softmax <axis = -1> (d)
          o = MatMul (m, vt)
          ot = Transpose <perm = [0, 2, 1, 3]> (o)
          y = Reshape (ot, merged)
        }""",
    "shapes": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 12] x) => (float[A, B] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64 start = {0}, int64 step = {1}, int64[1] minus = {-1}> {
          s = Shape (x)
          n = Gather (s, zero)
          m = Gather (s, one)
          t = Concat <axis = 0> (m, n)
          r = Reshape (x, t)
          l = Squeeze (m)
          i = Range (start, l, step)
          f = Cast <to = 1> (i)
          e = Expand (f, s)
          z = ConstantOfShape (t)
          a = Add (r, z)
          b = Transpose <perm = [1, 0]> (a)
          y = Add (b, e)
        }""",
    "loop": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 8] x, int64 trips, bool go) => (float[N, 8] y) {
          y = Loop (trips, go, x) <body = step (int64 i, bool c, float[N, 8] h) => (bool k, float[N, 8] g) {
            k = Identity (c)
            g = Tanh (h)
          }>
        }""",
    "function": """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (float[N, 8] x) => (float[N, 8] y) {
          a = own.twice <scale = 2.0> (x)
          y = own.twice (a)
        }
        <domain: "own", opset_import: ["" : 17]>
        twice <scale: float = 1.0> (x) => (y) {
          s = Constant <value_float: float = @scale> ()
          t = Mul (x, s)
          y = Relu (t)
        }""",
    "quantised": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 4, 8, 8] x, int8[4, 4, 3, 3] w) => (float[N, 4, 6, 6] y)
        <float sx = {0.1}, int8 zx = {0}, float sw = {0.02}, int8 zw = {0}> {
          q = QuantizeLinear (x, sx, zx)
          d = DequantizeLinear (q, sx, zx)
          v = DequantizeLinear (w, sw, zw)
          c = Conv (d, v)
          r = QuantizeLinear (c, sx, zx)
          y = DequantizeLinear (r, sx, zx)
        }""",
}
NASTY = (0, -1, 1, 2, 7, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))


EXPORTERS = Path(__file__).parent.parent / "data" / "exporters"


def seeds() -> dict[str, onnx.ModelProto]:
    found = {name: onnx.parser.parse_model(text) for name, text in TEXTS.items()}
    exported = sorted(EXPORTERS.glob("*.onnx"))
    assert len(exported) > 10
    return found | {path.stem: onnx.load(path) for path in exported}


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(out) + 1) if out else 0
        match rng.randrange(6):
            case 0 if out:
                out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[min(at, len(out) - 1)] = rng.randrange(256)
            case 2:
                del out[at : at + rng.randrange(1, 40)]
            case 3:
                out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20)))
            case 4:
                piece = out[at : at + rng.randrange(1, 200)]
                where = rng.randrange(len(out) + 1)
                out[where:where] = piece
            case 5:
                del out[at:]
    return bytes(out)


def mutate_message(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    names = [o for n in graph.node for o in n.output] + [i.name for i in graph.input] + [""]
    types = [n.op_type for n in graph.node] + [
        "Loop",
        "If",
        "Range",
        "Tile",
        "NonZero",
        "NoSuchOperator",
        "Scan",
    ]
    for _ in range(rng.choice((1, 1, 2, 4))):
        node = rng.choice(graph.node) if graph.node else None
        match rng.randrange(9):
            case 0 if node is not None and node.input:
                node.input[rng.randrange(len(node.input))] = rng.choice(names)
            case 1 if node is not None and node.output:
                node.output[rng.randrange(len(node.output))] = rng.choice(names)
            case 2 if node is not None:
                node.op_type = rng.choice(types)
            case 3 if node is not None and node.attribute:
                attribute = rng.choice(node.attribute)
                attribute.i = rng.choice(NASTY)
                for j in range(len(attribute.ints)):
                    attribute.ints[j] = rng.choice(NASTY)
            case 4 if graph.input:
                kind = rng.choice(graph.input).type.tensor_type
                for dim in kind.shape.dim:
                    if rng.random() < 0.5:
                        dim.dim_value = rng.choice(NASTY)
            case 5 if graph.input:
                rng.choice(graph.input).type.tensor_type.elem_type = rng.randrange(40)
            case 6 if graph.initializer:
                weight = rng.choice(graph.initializer)
                if weight.int64_data:
                    for j in range(len(weight.int64_data)):
                        weight.int64_data[j] = rng.choice(NASTY)
                elif weight.raw_data:
                    weight.raw_data = mutate_bytes(weight.raw_data, rng)
                else:
                    weight.dims[:] = [rng.choice(NASTY) for _ in range(rng.randrange(4))]
            case 7 if node is not None:
                graph.node.append(node)
            case 8:
                for opset in changed.opset_import:
                    opset.version = rng.choice((1, 6, 7, 13, 23, 99, -1))
    return changed


@contextmanager
def bounded(seconds: int) -> Iterator[None]:
    def expire(signum: int, frame: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    old = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.slow
def test_every_mutated_file_is_estimated_or_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(20260920)
    originals = seeds()
    path = tmp_path / "mutated.onnx"
    for model in originals.values():  # the unmutated ones are good, so refusals are the mutations' doing
        path.write_bytes(model.SerializeToString())
        result = estimate_rows([path], gpus=["V100"], batch_sizes=[2], dims=dims_of(model), trip_count=3)
        assert not result.failures, result.failures
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_MEMORY, hard))
    estimated = refused = 0
    try:
        for number in range(FILES):
            model = originals[rng.choice(sorted(originals))]
            if number % 2:
                data = mutate_bytes(model.SerializeToString(), rng)
            else:
                try:
                    data = mutate_message(model, rng).SerializeToString()
                except (TypeError, ValueError):
                    continue
            path.write_bytes(data)
            try:
                with bounded(SECONDS_PER_FILE):
                    result = estimate_rows(
                        [path], gpus=["V100"], batch_sizes=[2], dims=dims_of(model), trip_count=3,
                        runtime=("torch", "onnxruntime")[number // 2 % 2], kernels=True,
                    )  # fmt: skip
                for _, error in result.failures:
                    raise error
                estimated += 1
            except GkestimatorError as e:
                refused += 1
                assert "\n" not in str(e) and str(e), f"file {number}"
            except BaseException as e:
                keep = Path(path.parent.parent, f"mutated_{number}.onnx")
                keep.write_bytes(data)
                raise AssertionError(f"file {number} ({keep}): {e!r}") from e
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    with capsys.disabled():
        print(f"\n{FILES} mutated files: {estimated} estimated, {refused} refused in one line")
    assert estimated > 50 and refused > 500


def dims_of(model: onnx.ModelProto) -> dict[str, int]:
    names = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    return {name: size for name, size in (("S", 16), ("tokens", 8)) if name in names}
