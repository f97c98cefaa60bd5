"""What strangers send, through the command line: exit status, one line that names the thing, nothing half-written."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.helper
import onnx.parser
import pytest

GOOD = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 16] x, float[16, 16] w) => (float[N, 16] y) {
      m = MatMul (x, w)
      y = Relu (m)
    }"""
SECONDS = 60


def gkest(
    *arguments: str | Path, cwd: Path | None = None, memory: int | None = None
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    code = "import sys; from gkestimator.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=False, capture_output=True, text=True, timeout=SECONDS, cwd=cwd, preexec_fn=limit,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], *words: str, status: int = 2) -> str:
    """Asserts one error line that holds ``words``; returns it."""
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word.lower() in lines[0].lower(), (word, lines[0])
    return lines[0]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.onnx"
    onnx.save(onnx.parser.parse_model(GOOD), path)
    return path


def save(tmp_path: Path, text: str, name: str = "bad.onnx") -> Path:
    path = tmp_path / name
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def estimate(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return gkest("estimate", path, "--gpu", "V100", *more)


@pytest.mark.slow
def test_a_good_model_is_estimated(good: Path) -> None:
    done = estimate(good, "--batch-size", "1,8")
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["truncated", "text", "one_byte", "empty", "noise", "json", "zip"])
def test_files_that_are_no_models(kind: str, good: Path, tmp_path: Path) -> None:
    data = good.read_bytes()
    content = {
        "truncated": data[: len(data) // 2],
        "text": b"This is not a model.\n" * 50,
        "one_byte": b"\x08",
        "empty": b"",
        "noise": random.Random(7).randbytes(4096),
        "json": b'{"graph": []}',
        "zip": b"PK\x03\x04" + bytes(200),
    }[kind]
    bad = tmp_path / f"{kind}.onnx"
    bad.write_bytes(content)
    refused(estimate(bad), f"{kind}.onnx")


@pytest.mark.slow
def test_one_bad_among_good_ones_is_status_1_and_the_rows_are_there(good: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"x")
    done = gkest("estimate", good, bad, "--gpu", "V100", "--format", "csv")
    refused(done, "bad.onnx", status=1)
    assert "good" in done.stdout and "bad" not in done.stdout


@pytest.mark.parametrize("value", ["0", "-1", "1e9", "999999999999999999999", "two", "1,,2", "", "1.5"])
def test_batch_sizes_that_make_no_sense(good: Path, value: str) -> None:
    done = estimate(good, "--batch-size", value)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "batch" in done.stderr.lower()


@pytest.mark.slow
def test_an_unknown_gpu_is_answered_with_the_closest(good: Path) -> None:
    refused(gkest("estimate", good, "--gpu", "V10O"), "V10O", "V100")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--dtype", "fp13", "fp13"), ("--runtime", "tensorflow", "tensorflow"), ("--sm-share", "0", "share"),
        ("--sm-share", "140", "share"), ("--dim", "seq", "seq"), ("--dim", "nothing=4", "nothing"),
        ("--streams", "0", "stream"), ("--host-overhead-us", "nan", "overhead"), ("--bundle", "/nonexistent", "nonexistent"),
        ("--gpu-spec", "/nonexistent.toml", "nonexistent"), ("--format", "xml", "xml"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(good: Path, option: str, value: str, word: str) -> None:
    done = estimate(good, option, value)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert word in done.stderr


@pytest.mark.slow
def test_an_unbound_dimension_says_how_to_bind_it(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        GOOD.replace("float[N, 16] x", "float[N, tokens, 16] x").replace(
            "float[N, 16] y", "float[N, tokens, 16] y"
        ),
    )
    refused(estimate(path), "tokens", "--dim")
    assert estimate(path, "--dim", "tokens=12").returncode == 0


@pytest.mark.slow
def test_a_directory_without_models(tmp_path: Path) -> None:
    refused(estimate(tmp_path), str(tmp_path.name))


@pytest.mark.slow
def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    refused(estimate(tmp_path / "absent.onnx"), "absent.onnx")


@pytest.mark.slow
def test_a_fifo_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    refused(estimate(tmp_path / "pipe.onnx"), "pipe.onnx")


@pytest.mark.slow
def test_a_cyclic_graph(tmp_path: Path) -> None:
    text = GOOD.replace("m = MatMul (x, w)", "m = Add (x, y)")
    refused(estimate(save(tmp_path, text)), "bad.onnx", "cycl")


@pytest.mark.slow
def test_an_undeclared_tensor(tmp_path: Path) -> None:
    refused(estimate(save(tmp_path, GOOD.replace("MatMul (x, w)", "MatMul (x, nowhere)"))), "nowhere")


@pytest.mark.slow
def test_a_tensor_made_twice(tmp_path: Path) -> None:
    refused(estimate(save(tmp_path, GOOD.replace("y = Relu (m)", "m = Relu (x)\ny = Relu (m)"))), "m")


@pytest.mark.slow
def test_shapes_that_contradict(tmp_path: Path) -> None:
    refused(estimate(save(tmp_path, GOOD.replace("float[16, 16] w", "float[15, 16] w"))), "MatMul", "15")


@pytest.mark.slow
def test_unknown_operators_are_all_listed_and_may_be_let_through(tmp_path: Path) -> None:
    text = GOOD.replace('["" : 17]', '["" : 17, "own" : 1]').replace(
        "y = Relu (m)", "p = own.First (m)\nq = own.Second (p)\ny = Relu (q)"
    )
    text = text.replace("{", "<float[N, 16] p, float[N, 16] q> {", 1)
    path = save(tmp_path, text)
    refused(estimate(path), "own.First", "own.Second")
    done = estimate(path, "--allow-unknown", "--format", "json")
    assert done.returncode == 0, done.stderr
    import json

    row = json.loads(done.stdout)["rows"][0]
    assert row["latency_high_ms"] is None and row["unknown_kernels"] == 2 and "lower bound" in row["warnings"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "word"),
    [("no/such/folder/out.csv", "out.csv"), ("", "")],
    ids=["missing folder", "a directory"],
)
def test_an_output_that_cannot_be_written_leaves_nothing(
    good: Path, tmp_path: Path, where: str, word: str
) -> None:
    target = tmp_path / where if where else tmp_path
    before = sorted(tmp_path.rglob("*"))
    refused(estimate(good, "--format", "csv", "-o", str(target)), word or tmp_path.name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_one_line(good: Path) -> None:
    done = estimate(good, "--format", "csv", "-o", "/dev/full")
    assert done.returncode == 2 and "Traceback" not in done.stderr and "/dev/full" in done.stderr


HOSTILE = {
    "range": """n (float[N, 4] x) => (float[N, 4] y) <int64 a = {0}, int64 b = {1000000000000}, int64 c = {1}> {
        r = Range (a, b, c)
        f = Cast <to = 1> (r)
        s = ReduceSum <keepdims = 0> (f)
        y = Add (x, s) }""",
    "constant_of_shape": """n (float[N, 4] x) => (float[N, 4] y) <int64[1] a = {1000000000000000}> {
        z = ConstantOfShape (a)
        s = ReduceMax <keepdims = 0> (z)
        y = Add (x, s) }""",
    "expand": """n (float[N, 4] x) => (float[A, B] y) <int64[2] a = {4611686018427387904, 4611686018427387904}> {
        e = Expand (x, a)
        y = Relu (e) }""",
    "tile": """n (float[N, 4] x) => (float[A, B] y) <int64[2] a = {4294967296, 4294967296}> {
        e = Tile (x, a)
        y = Relu (e) }""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_small_files_that_ask_for_the_world_stay_bounded(name: str, tmp_path: Path) -> None:
    path = save(tmp_path, f'<ir_version: 8, opset_import: ["" : 17]> {HOSTILE[name]}', f"{name}.onnx")
    done = gkest("estimate", path, "--gpu", "V100", memory=4 << 30)
    assert "Traceback" not in done.stderr and "MemoryError" not in done.stderr
    assert done.returncode in (0, 2)
    if name in ("expand", "tile"):
        refused(done, f"{name}.onnx")


@pytest.mark.slow
def test_functions_that_call_themselves_or_double_forty_times(tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17, "f" : 1]> n (float[N, 4] x) => (float[N, 4] y) { y = f.g0 (x) }'
    itself = head + '<domain: "f", opset_import: ["" : 17, "f" : 1]> g0 (x) => (y) { y = f.g0 (x) }'
    refused(estimate(save(tmp_path, itself)), "g0")
    doubling = (
        head
        + "".join(
            f'<domain: "f", opset_import: ["" : 17, "f" : 1]> g{i} (x) => (y) {{ a = f.g{i + 1} (x)\n y = f.g{i + 1} (a) }}'
            for i in range(40)
        )
        + '<domain: "f", opset_import: ["" : 17]> g40 (x) => (y) { y = Relu (x) }'
    )
    refused(estimate(save(tmp_path, doubling)), "bad.onnx")


@pytest.mark.slow
def test_external_data_is_never_opened(good: Path, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(GOOD)
    secret = tmp_path / "pipe"
    os.mkfifo(secret)  # opening it would block for ever
    weight = model.graph.initializer.add(
        name="w", data_type=1, dims=[16, 16], data_location=onnx.TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="../" * 12 + str(secret).lstrip("/"))
    del model.graph.input[1]
    path = tmp_path / "external.onnx"
    path.write_bytes(model.SerializeToString())
    assert estimate(path).returncode == 0


@pytest.mark.slow
def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(GOOD)
    model.graph.node[0].input[0] = "evil\x1b[2J\nsecond line"
    path = tmp_path / "names.onnx"
    path.write_bytes(model.SerializeToString())
    done = estimate(path)
    assert "\x1b" not in done.stderr
    refused(done, "evil")


@pytest.mark.slow
def test_an_attribute_name_that_is_no_text(good: Path, tmp_path: Path) -> None:
    model = onnx.load(good)
    for name in ("aaaa", "bbbb"):
        model.graph.node[0].attribute.append(onnx.helper.make_attribute(name, 1))
    path = tmp_path / "names.onnx"
    path.write_bytes(model.SerializeToString().replace(b"bbbb", b"b\xff\xfeb"))
    refused(estimate(path), "names.onnx", "not UTF-8")


OLD = """
    <ir_version: 8, opset_import: ["": 11]>
    g (float[1,16] x) => (float y) { y = ReduceSum <axes = "nearest"> (x) }"""
OLD_FUNCTION = """
    <ir_version: 8, opset_import: ["": 17, "d": 1]>
    g (float[1,16] x) => (float y) { y = d.F (x) }
    <domain: "d", opset_import: ["": 11]>
    F (x) => (y) { y = ReduceSum <axes = "nearest"> (x) }"""


NO_INPUT = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[1,16] x) => (y) { y = EyeLike <dtype = 1> ( , x) }"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OLD, "mismatched attribute type"),
        (OLD_FUNCTION, "mismatched attribute type"),
        (NO_INPUT, "input size 2 not in range"),
    ],
    ids=["conversion", "conversion of a function", "inference"],
)
def test_what_onnx_itself_would_die_of(tmp_path: Path, good: Path, text: str, words: str) -> None:
    """onnx takes the text for a list of axes, the missing input for one: the process ended without a line."""
    output = tmp_path / "merged.onnx"
    refused(gkest("merge", save(tmp_path, text), good, "--always", "-o", output), words)
    assert not output.exists()
