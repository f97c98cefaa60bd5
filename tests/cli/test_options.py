"""An option is said once: command line, library, evaluate, merge and documentation derive from its record."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import UsageError
from gkestimator.core.options import REQUIRED, options_of
from gkestimator.estimation.request import EstimateOptions, EstimateRequest
from gkestimator.evaluation.options import EvaluateRequest
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.library.schemas.options_page import page
from gkestimator.merging.options import MergeOptions, MergeRequest

ROOT = Path(__file__).parents[2]
RECORDS = {"estimate": EstimateRequest, "evaluate": EvaluateRequest, "merge": MergeRequest}
NET = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 64] x) => (float[N, 64] y) { y = Tanh (x) }"""
Outcome = tuple[int, str]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx.parser.parse_model(NET).SerializeToString())
    return path


@pytest.fixture
def gkest(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*arguments: str | Path) -> Outcome:
        status = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out + err

    return call


def asked(**options: Any) -> EstimateRequest:
    return EstimateRequest("m.onnx", "V100", **options)


def test_the_page_of_options_is_current() -> None:
    text = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    assert text == page(), (
        "run: python -m gkestimator.library.schemas.options_page > docs/reference/options.md"
    )


@pytest.mark.parametrize("command", RECORDS)
def test_the_command_and_the_library_offer_the_record(command: str, gkest: Callable[..., Outcome]) -> None:
    options = options_of(RECORDS[command])
    parameters = inspect.signature(getattr(gkestimator, command)).parameters
    status, text = gkest(command, "--help")
    assert status == 0
    for name, option in options.items():
        assert name in parameters and f"``{name}``" in getattr(gkestimator, command).__doc__
        assert option.flag is None or option.flag in text
        assert option.default is REQUIRED or option.checked(option.default) is not REQUIRED
    shown = gkest("demo", "--help")[1]
    assert all(option.flag in shown for option in options_of(EstimateOptions).values())


@pytest.mark.parametrize(
    ("option", "good", "bad", "expected"),
    [
        ("streams", ["1", "128"], ["0", "129", "1024", "2.5", "two"], "a whole number from 1 to 128"),
        ("trip_count", ["0", "1000000"], ["-1", "1000001"], "a whole number from 0 to 1000000"),
        ("host_overhead_us", ["0", "1e6"], ["nan", "inf", "-1", "2e6"], "a number from 0 to 1000000"),
        ("context_mib", ["0", "1048576"], ["nan", "1048577"], "a number from 0 to 1048576"),
        ("attention", ["auto", "fused", "eager"], ["Fused"], "one of auto, fused, eager"),
        ("runtime", ["torch", "onnxruntime"], ["tensorflow"], f"one of {', '.join(sorted(RUNTIMES))}"),
        (
            "dtype",
            ["auto", "int8"],
            ["fp13"],
            "one of auto, fp32, tf32, fp16, bf16, amp, int8, fp8, w8a16, w4a16",
        ),
    ],
)
def test_one_bound_for_the_library_and_every_command(
    option: str, good: list[str], bad: list[str], expected: str, net: Path, gkest: Callable[..., Outcome]
) -> None:
    kind = options_of(EstimateOptions)[option].kind
    for text in good:
        assert getattr(asked(**{option: kind.parsed(text)}), option) == kind.parsed(text)
    flag = "--" + option.replace("_", "-")
    for text in bad:
        for ask in (asked, lambda **options: EvaluateRequest("t.csv", **options)):
            with pytest.raises(UsageError, match=rf"^{option}: found .*, expected {expected}$"):
                ask(**{option: kind.parsed(text)})
        for command in (("estimate", net, "--gpu", "V100"), ("evaluate", "--truth", "none.csv")):
            status, said = gkest(*command, flag, text)
            assert status == 2 and said.count("\n") == 1
            assert f"'{flag}': found " in said and f"expected {expected} (see" in said


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("batch_sizes", 1_000_001, "1000001"),
        ("batch_sizes", [], "none"),
        ("batch_sizes", [1, True], "True"),
        ("dims", {"seq": -1}, "seq=-1"),
        ("dims", {"seq": 2**31}, "seq=2147483648"),
        ("dims", [("seq", 1)], r"\[\('seq', 1\)\]"),
        ("dims", (("seq", 1), ("seq", 2)), "seq=1 and seq=2"),
        ("gpu_specs", [3], "3"),
    ],
)
def test_merging_refuses_what_an_estimate_refuses(name: str, value: Any, found: str) -> None:
    for record in (asked, MergeOptions):
        with pytest.raises(UsageError, match=f"^{name}: found {found}, expected "):
            record(**{name: value})


def test_dimensions_that_contradict_each_other_are_refused_by_every_command(
    net: Path, gkest: Callable[..., Outcome]
) -> None:
    for command in (
        ("estimate", net, "--gpu", "V100"),
        ("evaluate", "--truth", "none.csv"),
        ("merge", net, net),
        ("profile", "plan", "-o", "plan.json"),
    ):
        status, said = gkest(*command, "--dim", "s=1", "--dim", "s=2")
        assert status == 2 and "dims: found s=1 and s=2, expected s once" in said


def test_samples_have_one_bound() -> None:
    with pytest.raises(UsageError, match="^samples: found 10001, expected a whole number from 0 to 10000$"):
        gkestimator.merge(["a.onnx", "b.onnx"], samples=10_001)


def test_one_value_stands_for_a_list_and_numpy_for_python() -> None:
    request = asked(batch_sizes=np.int64(8), sm_shares=np.float64(50.0), bundles="b", dims=None)
    assert (request.models, request.gpus, request.bundles) == ((Path("m.onnx"),), ("V100",), (Path("b"),))
    assert (request.batch_sizes, request.sm_shares, request.dims) == ((8,), (50.0,), {})
    assert type(request.batch_sizes[0]) is int


def test_what_is_asked_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        asked().streams = 2  # type: ignore[misc]


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(
        UsageError, match="^estimate: found the option 'stream', expected one of models, gpus, "
    ):
        gkestimator.estimate("m.onnx", "V100", stream=2)  # type: ignore[call-arg]


NEW = """    power_limit_w: Value[float | None] = Option(
        None, Number(low=50, high=1000), "Power limit of the GPU.", unit="W"
    )
"""
BEFORE = "    allow_unknown: Value[bool]"
USE = """
import sys
import gkestimator
from gkestimator.estimation.engine import Engine
run = Engine.run
def told(self, *more):
    print("engine:", self.request.power_limit_w)
    return run(self, *more)
Engine.run = told
print(gkestimator.__file__)
gkestimator.estimate(sys.argv[1], "V100", power_limit_w=250)
from gkestimator.cli import run as cli
assert cli(["estimate", sys.argv[1], "--gpu", "V100", "--power-limit-w", "300"]) == 0
assert cli(["evaluate", "--truth", sys.argv[2], "--models", sys.argv[1], "--gpu", "V100", "--power-limit-w", "350"]) == 0
"""


@pytest.mark.slow
def test_a_new_option_is_one_field(net: Path, tmp_path: Path) -> None:
    package = tmp_path / "gkestimator"
    shutil.copytree(ROOT / "gkestimator", package)
    for folder in ("cli", "profiling", "datasets", "models"):
        shutil.copytree(ROOT / folder, package / folder)
    record = package / "estimation" / "request.py"
    text = record.read_text(encoding="utf-8")
    assert text.count(BEFORE) == 1
    record.write_text(text.replace(BEFORE, NEW + BEFORE), encoding="utf-8")
    truth = tmp_path / "truth.csv"
    truth.write_text("model,batch_size,latency_ms\nnet,8,1.0\n")

    def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={"PYTHONPATH": str(tmp_path), "PATH": ""}, timeout=120,
        )  # fmt: skip

    command = "import sys; from gkestimator.cli import run; sys.exit(run(sys.argv[1:]))"
    for name in ("estimate", "demo", "evaluate"):
        shown = " ".join(python("-c", command, name, "--help").stdout.split())
        assert "--power-limit-w FLOAT Power limit of the GPU. [from 50 to 1000]" in shown
    assert (
        "| `--power-limit-w` | `power_limit_w` |"
        in python("-m", "gkestimator.library.schemas.options_page").stdout
    )
    refused = python("-c", command, "estimate", net, "--gpu", "V100", "--power-limit-w", "20")
    assert refused.returncode == 2 and "found 20.0, expected a number from 50 to 1000" in refused.stderr
    used = python("-c", USE, net, truth)
    assert used.returncode == 0, used.stderr
    lines = used.stdout.splitlines()
    assert str(package / "__init__.py") in lines
    assert [line for line in lines if line.startswith("engine:")] == [
        "engine: 250",
        "engine: 300.0",
        "engine: 350.0",
    ]
