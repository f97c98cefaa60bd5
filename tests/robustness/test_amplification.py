"""Files of a few kilobytes that unroll, inline or fold into very much: estimated or refused within seconds.

The measured worst case is about two seconds on one idle core; the limit leaves room for a busy machine.
"""

from __future__ import annotations

import time
from pathlib import Path

import onnx.parser
import pytest

from gkestimator.estimation import estimate_rows

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
MOST_SECONDS = 60
MOST_BYTES = 16_384


def growing_loop(body: str, trips: int) -> str:
    """A loop whose carried tensor grows by a row a trip, so that every trip has shapes of its own."""
    return f"""{HEAD} n (float[N,4] x) => (float[A,B] y) <int64 t = {{{trips}}}, bool c = {{1}}> {{
      y = Loop (t, c, x) <body = s (int64 i, bool k, float[P,Q] h) => (bool k2, float[R,S] g) {{
        k2 = Identity(k)
        {body} }}> }}"""


def chain(op_type: str, length: int) -> str:
    steps = "\n".join(f"a{i + 1} = {op_type} (a{i})" for i in range(length))
    return f"a0 = Concat<axis=0> (h, x)\n{steps}\ng = Relu (a{length})"


def shape_arithmetic(length: int) -> str:
    steps = "\n".join(f"s{i} = Shape (a{i})\na{i + 1} = Reshape (a{i}, s{i})" for i in range(length))
    return f"a0 = Concat<axis=0> (h, x)\n{steps}\ng = Relu (a{length})"


def nested(trips: int) -> str:
    inner = """g = Loop (t, c, h) <body = s2 (int64 i2, bool kk, float[U,V] h2) => (bool kk2, float[W,X] g2) {
        kk2 = Identity (kk)
        g2 = Concat<axis=0> (h2, x) }>"""
    return growing_loop(inner, trips)


def doubling(depth: int) -> str:
    head = f'{HEAD[:-2]}, "f" : 1]> n (float[N, 4] x) => (float[N, 4] y) {{ y = f.g0 (x) }}'
    functions = "".join(
        f'<domain: "f", opset_import: ["" : 17, "f" : 1]> g{i} (x) => (y) {{ a = f.g{i + 1} (x)\n y = f.g{i + 1} (a) }}'
        for i in range(depth)
    )
    return head + functions + f'<domain: "f", opset_import: ["" : 17]> g{depth} (x) => (y) {{ y = Relu (x) }}'


CASES = {  # text and whether it stays below the bounds
    "loop": (growing_loop(chain("Tanh", 7), 2_048), True),
    "loop too long": (growing_loop(chain("Tanh", 90), 2_048), False),
    "loop of shape arithmetic": (growing_loop(shape_arithmetic(3), 2_000), True),
    "loop of much shape arithmetic": (growing_loop(shape_arithmetic(45), 2_048), False),
    "loop in a loop": (nested(140), True),
    "long loop in a loop": (nested(2_000), False),
    "functions": (doubling(12), True),
    "functions too deep": (doubling(30), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_small_file_costs_seconds_at_most(name: str, tmp_path: Path) -> None:
    text, fits = CASES[name]
    path = tmp_path / "small.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    assert path.stat().st_size < MOST_BYTES
    started = time.process_time()  # of this process alone: a busy machine does not count
    result = estimate_rows([path], gpus=["V100"], batch_sizes=[2])
    seconds = time.process_time() - started
    if fits:
        assert not result.failures and result.rows[0].kernels > 2_000
    else:
        ((_, error),) = result.failures
        assert "GKEST_LIMITS=expanded_" in str(error) and "small" in str(error)
    print(f"{name}: {seconds:.2f} s")
    assert seconds < MOST_SECONDS
