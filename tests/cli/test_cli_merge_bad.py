"""``gkest merge`` given what it should not be given: one line, exit status 2, nothing written; or right."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import families
import numpy as np
import onnx
import pytest
from _plans import plan, replica
from onnx import TensorProto, helper, numpy_helper, parser, version_converter
from same_outputs import same

from gkestimator.cli import run
from gkestimator.documents import plan_json

pytest.importorskip("scipy")

Outcome = tuple[int, str, str]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where siblings ``a.onnx`` and ``b.onnx`` lie, the current folder."""
    monkeypatch.chdir(tmp_path)
    one = families.resnet_like()
    families.saved(one, tmp_path / "a.onnx")
    families.saved(families.sibling(one, last=1), tmp_path / "b.onnx")
    return tmp_path


@pytest.fixture
def gkest(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    def call(*arguments: str) -> Outcome:
        status = run(["merge", *arguments])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


@pytest.fixture
def refuse(folder: Path, gkest: Callable[..., Outcome]) -> Callable[..., str]:
    """The one line that a call ends with, after checking that it did nothing else."""

    def call(*arguments: str) -> str:
        before = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        status, out, err = gkest(*arguments)
        lines = err.splitlines()
        assert (status, out) == (2, ""), err
        assert len(lines) == 1 and lines[0].startswith("gkest: error: ") and len(lines[0]) < 800
        assert "defect" not in lines[0] and "Traceback" not in lines[0]
        assert {p: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
        return lines[0]

    return call


def changed(change: Callable[[onnx.ModelProto], object], name: str = "x.onnx") -> str:
    model = onnx.load("b.onnx")
    change(model)
    Path(name).write_bytes(model.SerializeToString())
    return name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "-o m.txt: found the suffix '.txt'"),
        (("-o", "b.onnx"), "-o b.onnx: is also used as b.onnx"),
        (("-o", "none/m.onnx"), "none/m.onnx: cannot be written"),
        (("--gpu", "Z9000"), "Z9000"),
        (("--gpu-spec", "none.toml"), "none.toml"),
        (("--bundle", "none"), "none"),
        (("--runtime", "tensorflow"), "'--runtime': found 'tensorflow', expected one of"),
        (("--dtype", "fp13"), "'--dtype': found 'fp13', expected one of auto"),
        (("--omega", "0"), "'--omega': found 0.0, expected a number above 0 to 1"),
        (("--omega", "nan"), "'--omega': found nan"),
        (("--tolerance", "-1"), "'--tolerance': found -1.0"),
        (("--tau-ms", "-1"), "'--tau-ms': found -1.0"),
        (("--group-distance", "2"), "'--group-distance': found 2.0"),
        (("--batch-size", "1,2,3"), "found 3 batch sizes for 2 models"),
        (("--batch-size", "0"), "found 0, expected whole numbers from 1 to 1000000"),
        (("--batch-size", "9999999"), "found 9999999, expected whole numbers from 1 to 1000000"),
        (("--dim", "speed=3"), "dimension 'speed' is in none of the models; known: batch"),
        (("--dim", "batch=1", "--dim", "batch=2"), "dims: found batch=1 and batch=2"),
        (("--samples", "-1"), "--samples"),
        (("--format", "csv"), "--format"),
        (("--plan", "none.json"), "none.json"),
    ],
)
def test_options(refuse: Callable[..., str], options: tuple[str, ...], text: str) -> None:
    assert text in refuse("a.onnx", "b.onnx", "-o", "m.txt" if not options else "m.onnx", *options)


@pytest.mark.parametrize(
    "option", ["--gpu=V100", "--runtime=torch", "--dtype=fp32", "--batch-size=1", "--dim=s=1"]
)
def test_what_a_plan_says_itself(refuse: Callable[..., str], option: str) -> None:
    Path("plan.json").write_text("{}")
    assert "has no use with --plan" in refuse("a.onnx", "b.onnx", "--plan", "plan.json", option)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.onnx"], "found 1 model, expected at least two"),
        (["a.onnx"] * 65, "found 65 models, expected at most 64"),
        (["a.onnx", "none.onnx"], "none.onnx: found no such file"),
        (["a.onnx", "none*.onnx"], "none*.onnx: no file matches"),
        (["a.onnx", "empty"], "empty: found a folder without models"),
    ],
)
def test_which_models(refuse: Callable[..., str], arguments: list[str], text: str) -> None:
    Path("empty").mkdir()
    assert text in refuse(*arguments, "-o", "m.onnx")


def test_a_pipe(refuse: Callable[..., str]) -> None:
    os.mkfifo("pipe.onnx")
    assert "pipe.onnx: found something other than a regular file" in refuse("a.onnx", "pipe.onnx")


def test_which_of_two_files_of_one_name(refuse: Callable[..., str]) -> None:
    Path("x").mkdir()
    Path("x/a.onnx").write_bytes(b"")
    assert refuse("a.onnx", "x/a.onnx").startswith("gkest: error: x/a.onnx: ")


@pytest.mark.parametrize("size", [0, 1, 100, 20_000, 80_000])
def test_a_file_that_was_cut_off(refuse: Callable[..., str], size: int) -> None:
    Path("x.onnx").write_bytes(Path("b.onnx").read_bytes()[:size])
    assert "x.onnx" in refuse("a.onnx", "x.onnx", "-o", "m.onnx")


def test_a_text_file(refuse: Callable[..., str]) -> None:
    Path("x.onnx").write_text("weights: none\n" * 20)
    assert "x.onnx" in refuse("a.onnx", "x.onnx", "-o", "m.onnx")


def test_a_cyclic_graph(refuse: Callable[..., str]) -> None:
    def cycle(model: onnx.ModelProto) -> None:
        first, last = model.graph.node[0], model.graph.node[3]
        first.input[0] = last.output[0]

    line = refuse("a.onnx", changed(cycle), "-o", "m.onnx")
    assert "x.onnx" in line and ("cycl" in line or "circle" in line)


def test_missing_weights(refuse: Callable[..., str]) -> None:
    def without(model: onnx.ModelProto) -> None:
        model.graph.initializer[2].ClearField("raw_data")

    line = refuse("a.onnx", changed(without), "-o", "m.onnx")
    assert "x.onnx" in line and "weight" in line


def test_a_weight_that_nobody_holds(refuse: Callable[..., str]) -> None:
    def without(model: onnx.ModelProto) -> None:
        del model.graph.initializer[2]

    assert "x.onnx" in refuse("a.onnx", changed(without), "-o", "m.onnx")


def test_external_weights_that_are_not_there_or_outside(refuse: Callable[..., str], folder: Path) -> None:
    def outside(location: str) -> Callable[[onnx.ModelProto], None]:
        def change(model: onnx.ModelProto) -> None:
            tensor = model.graph.initializer[0]
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=location)

        return change

    (folder / "sub").mkdir()
    Path("secret").write_bytes(bytes(10_000))
    for location in ("none.data", "../secret", "/etc/passwd"):
        name = changed(outside(location), "sub/x.onnx")
        assert "x.onnx" in refuse("a.onnx", name, "-o", "m.onnx")
    os.symlink(folder / "secret", folder / "sub" / "link")
    assert "x.onnx" in refuse("a.onnx", changed(outside("link"), "sub/x.onnx"), "-o", "m.onnx")


@pytest.mark.slow
def test_external_weights_are_not_written_over(refuse: Callable[..., str], folder: Path) -> None:
    """Neither those that the merged model reads, nor those that it has from another of the models."""
    for name in ("x", "y"):
        location = f"{name}.data.onnx"
        onnx.save(
            onnx.load("a.onnx"),
            f"{name}.onnx",
            save_as_external_data=True,
            location=location,
            size_threshold=0,
        )
    kept = {p.name: p.read_bytes() for p in folder.iterdir()}
    for name in ("x.data.onnx", "y.data.onnx"):
        assert f"{name}: weights are read from this file" in refuse("x.onnx", "y.onnx", "-o", name)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == kept


def test_an_output_that_nobody_makes(refuse: Callable[..., str]) -> None:
    def without(model: onnx.ModelProto) -> None:
        model.graph.output[0].name = "nobody"

    assert "x.onnx" in refuse("a.onnx", changed(without), "-o", "m.onnx")


def test_a_name_that_is_defined_twice(refuse: Callable[..., str]) -> None:
    def twice(model: onnx.ModelProto) -> None:
        model.graph.node[1].output[0] = model.graph.node[0].output[0]

    assert "x.onnx" in refuse("a.onnx", changed(twice), "-o", "m.onnx")


def test_a_batch_size_that_a_file_has_not(refuse: Callable[..., str]) -> None:
    families.saved(families.resnet_like(batch=2), Path("x.onnx"))
    assert "batch size 4" in refuse("a.onnx", "x.onnx", "-o", "m.onnx", "--batch-size", "4")


def test_fixed_batches_of_different_size_are_merged(gkest: Callable[..., Outcome]) -> None:
    one = families.resnet_like(batch=2)
    families.saved(one, Path("x.onnx"))
    families.saved(families.resnet_like(batch=3), Path("y.onnx"))
    status, _, err = gkest("x.onnx", "y.onnx", "-o", "m.onnx")
    assert status == 0 and "Merged" in err
    same("m.onnx", {"x": "x.onnx", "y": "y.onnx"})


def test_another_opset_is_brought_to_the_higher(gkest: Callable[..., Outcome]) -> None:
    onnx.save(version_converter.convert_version(onnx.load("b.onnx"), 19), "x.onnx")
    status, _, err = gkest("a.onnx", "x.onnx", "-o", "m.onnx")
    assert status == 0 and "Merged 18 operators" in err
    assert next(o.version for o in onnx.load("m.onnx").opset_import if o.domain == "") == 19
    same("m.onnx", {"a": "a.onnx", "x": "x.onnx"})


ACME = """
    <ir_version: 8, opset_import: ["" : 17, "com.acme" : 7]>
    net (float[N, 4] x) => (float[N, 4] y) { y = com.acme.Gate (x) }"""


def test_opsets_of_another_domain_that_differ(refuse: Callable[..., str]) -> None:
    for name, version in (("x.onnx", "7"), ("y.onnx", "8")):
        onnx.save(
            parser.parse_model(ACME.replace("7>", f"{version}>").replace(": 7]", f": {version}]")), name
        )
    line = refuse("x.onnx", "y.onnx", "-o", "m.onnx")
    assert "com.acme" in line and "7" in line and "8" in line


@pytest.mark.slow
def test_dims_that_disagree(gkest: Callable[..., Outcome]) -> None:
    """One exported for any sequence, one for 16 tokens."""
    families.saved(families.bert_like(sequence="seq"), Path("x.onnx"))
    families.saved(families.bert_like(sequence=16), Path("y.onnx"))
    status, _, err = gkest("x.onnx", "y.onnx", "-o", "m.onnx")
    assert (status, err.count("\n")) == (2, 1)
    assert "dimension x/seq has no size; give it with --dim x/seq=" in err
    status, _, err = gkest("x.onnx", "y.onnx", "-o", "m.onnx", "--dim", "seq=16")
    assert status == 0 and "Merged" in err
    same("m.onnx", {"x": "y.onnx", "y": "y.onnx"})
    status, out, err = gkest("x.onnx", "y.onnx", "--dim", "x/seq=8", "--samples", "1", "--format", "json")
    assert status == 0 and [m["dims"] for m in json.loads(out)["models"]] == [{"seq": 8}, {}]


def test_int8_models(gkest: Callable[..., Outcome]) -> None:
    held = {
        "s": np.float32(0.5), "z": np.uint8(128), "ws": np.float32(0.25), "wz": np.int8(0),
        "w": np.arange(-16, 16, dtype=np.int8).reshape(8, 4),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "ws", "wz", "s", "z"], ["y"])
    graph = helper.make_graph(
        [node], "quantised",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, ["N", 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "x.onnx")
    status, _, err = gkest("x.onnx", "x.onnx", "-o", "m.onnx")
    assert status == 0, err
    merged = onnx.load("m.onnx")
    onnx.checker.check_model(merged, full_check=True)
    assert [i.data_type for i in merged.graph.initializer if len(i.dims) == 2] == [TensorProto.INT8]


CHOICE = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 4] x, bool c) => (float[N, 4] y) <float[4, 4] w = {@}> {
      h = MatMul (x, w)
      y = If (c) <
        then_branch = one () => (float[N, 4] p) { p = MatMul (h, w) },
        else_branch = two () => (float[N, 4] q) { q = Neg (h) }
      >
    }"""


def test_models_with_branches_are_kept_as_they_are(gkest: Callable[..., Outcome]) -> None:
    ort = pytest.importorskip("onnxruntime")
    onnx.save(parser.parse_model(CHOICE.replace("@", ", ".join(f"{i / 7:.3f}" for i in range(16)))), "x.onnx")
    status, _, err = gkest("x.onnx", "x.onnx", "-o", "m.onnx", "--always")
    assert status == 0, err
    rng = np.random.default_rng(1)
    values = [rng.standard_normal((n, 4), dtype=np.float32) for n in (2, 3)]
    alone = ort.InferenceSession("x.onnx", providers=["CPUExecutionProvider"])
    both = ort.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    for choice in (True, False):
        found = both.run(None, {
            "x/x": values[0], "x/c": np.array(choice), "x#2/x": values[1], "x#2/c": np.array(not choice),
        })  # fmt: skip
        for got, x, c in zip(found, values, (choice, not choice), strict=True):
            np.testing.assert_allclose(
                got, alone.run(None, {"x": x, "c": np.array(c)})[0], rtol=1e-5, atol=1e-6
            )


def test_what_onnx_runtime_does_not_run_is_merged_and_not_compared(gkest: Callable[..., Outcome]) -> None:
    pytest.importorskip("onnxruntime")
    onnx.save(parser.parse_model(ACME), "x.onnx")
    status, out, _ = gkest("x.onnx", "a.onnx", "-o", "m.onnx", "--format", "json")
    found = json.loads(out)
    assert status == 0 and Path("m.onnx").exists()
    assert found["check"] is None and "x.onnx: onnxruntime does not load it" in found["check_reason"]
    # an original that is called like the merged file is an original still
    Path("old").mkdir()
    Path("x.onnx").rename("old/m.onnx")
    status, out, _ = gkest("old/m.onnx", "a.onnx", "-o", "m.onnx", "--format", "json")
    assert status == 0 and "m.onnx: onnxruntime does not load it" in json.loads(out)["check_reason"]


def test_a_graph_without_nodes(gkest: Callable[..., Outcome]) -> None:
    """Its input is its output; beside another model it stays so."""
    ort = pytest.importorskip("onnxruntime")
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph([], "nothing", [value], [value])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "x.onnx")
    for other in ("x.onnx", "a.onnx"):
        status, _, err = gkest("x.onnx", other, "-o", "m.onnx")
        assert status == 0 and "Nothing was merged" in err
        session = ort.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
        assert "x/x" in [o.name for o in session.get_outputs()]


def test_not_a_number_equals_nothing(gkest: Callable[..., Outcome]) -> None:
    def spoil(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.ndim == 4:
                tensor.CopyFrom(numpy_helper.from_array(np.full_like(values, np.nan), tensor.name))

    changed(spoil)
    status, _, err = gkest("x.onnx", "x.onnx", "-o", "m.onnx")
    assert status == 0 and "Nothing was merged" in err


@pytest.fixture
def small_disk() -> Iterator[None]:
    """A limit on the size of files stands in for a full disk: the write itself fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_more(refuse: Callable[..., str], small_disk: None) -> None:
    line = refuse("a.onnx", "b.onnx", "-o", "m.onnx")
    assert "m.onnx" in line and "cannot be written" in line


def test_no_room_for_a_comparison_that_nobody_asked_a_file_for(
    gkest: Callable[..., Outcome], small_disk: None
) -> None:
    status, out, _ = gkest("a.onnx", "b.onnx", "--format", "json")
    found = json.loads(out)
    assert status == 0 and found["pairs"] == 9 and found["check"] is None
    assert "cannot be written" in found["check_reason"]


@pytest.mark.slow
def test_killed_while_writing(folder: Path) -> None:
    """What was there before stays whole: written aside, then renamed."""
    Path("m.onnx").write_bytes(b"old")
    code = (
        "import os, signal, sys\n"
        "os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from gkestimator.cli import run\n"
        "sys.exit(run(['merge', 'a.onnx', 'b.onnx', '-o', 'm.onnx']))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert Path("m.onnx").read_bytes() == b"old"


def placed(*names: str) -> None:
    replicas = [replica(name) for name in names]
    Path("plan.json").write_text(
        plan_json(plan(replicas, models=[(n, 10.0, 100.0) for n in sorted(set(names))]))
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["b.onnx"], "model a: found no such name among 1 files"),
        (["a.onnx", "b.onnx", "-o", "a.onnx"], "a.onnx: cannot be made as a folder"),
        (["x/a.onnx", "y/a.onnx", "b.onnx"], "model a: found no such name among 3 files"),
        (["a.onnx", "b.onnx", "--gpu-spec", "none.toml"], "none.toml"),
    ],
)
def test_models_of_a_plan(refuse: Callable[..., str], arguments: list[str], text: str) -> None:
    for name in ("x", "y"):
        Path(name).mkdir()
        Path(name, "a.onnx").write_bytes(Path("a.onnx").read_bytes())
    placed("a", "b")
    assert text in refuse("--plan", "plan.json", *arguments)


@pytest.mark.parametrize("folder_is_there", [False, True])
def test_a_plan_of_which_no_set_can_be_merged(refuse: Callable[..., str], folder_is_there: bool) -> None:
    placed("a", "b")
    Path("b.onnx").write_bytes(b"")
    if folder_is_there:
        Path("new/folder").mkdir(parents=True)
    assert "b.onnx" in refuse(
        "--plan", "plan.json", "a.onnx", "b.onnx", "-o", "new/folder", "--format", "json"
    )
    assert Path("new").exists() == folder_is_there and not list(Path().glob("new/folder/*"))


def test_a_plan_is_not_written_over(refuse: Callable[..., str]) -> None:
    placed("a", "b")
    Path("plan.json").rename("index.json")
    assert "is also used as index.json" in refuse("--plan", "index.json", "a.onnx", "b.onnx", "-o", ".")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 2}', "x" * 100])
def test_what_is_no_plan(refuse: Callable[..., str], text: str) -> None:
    Path("plan.json").write_text(text)
    assert "plan.json" in refuse("--plan", "plan.json", "a.onnx", "b.onnx")
