"""gkest lengths, as a user calls it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gkestimator.cli import run

EXAMPLES = Path(__file__).parents[2] / "examples" / "lengths"
TABLE = EXAMPLES / "bert-base.csv"
SPEC = """
model: bert-base
gpu: RTX-3090
gpus: 4
slo_ms: 150
arrivals: {kind: mmpp, rate_rps: 400}
request_lengths: {median: 84, quantile: 0.98, value: 288, maximum: 512}
duration_s: 20
warmup_s: 2
window_s: 5
start: expected
"""
Outcome = tuple[int, bytes, str]


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    def call(*arguments: str | Path) -> Outcome:
        status = run(["lengths", *map(str, arguments)])
        out, err = capsysbinary.readouterr()
        return status, out, err.decode()

    return call


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.mark.slow
def test_one_result_in_three_forms(gkest: Callable[..., Outcome], spec: Path, tmp_path: Path) -> None:
    status, out, err = gkest(spec, "--table", TABLE)
    assert status == 0 and "Lowest 98th percentile" in err
    text = out.decode()
    assert "least-padding" in text and max(len(line) for line in text.splitlines()) <= 100
    status, out, _ = gkest(spec, "--table", TABLE, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out.decode())))
    document = tmp_path / "out.json"
    assert gkest(spec, "--table", TABLE, "-o", document)[0] == 0
    found = json.loads(document.read_bytes())
    assert [r["scheme"] for r in rows] == ["arlo", "least-padding", "least-load", "padding"]
    assert [r["scheme"] for r in found["schemes"]] == [r["scheme"] for r in rows]
    for row, scheme in zip(rows, found["schemes"], strict=True):
        assert float(row["latency_p98_ms"]) == scheme["latency_p98_ms"]
        assert row["cost_per_hour"] == "" and scheme["cost_per_hour"] is None  # no price is known: not 0
        assert scheme["arrived_rps"] == scheme["requests"] / 18 and "throughput_rps" not in scheme
        assert scheme["requests"] == sum(r["served"] for r in scheme["runtimes"])
        assert sum(w["requests"] for w in scheme["windows"]) > scheme["requests"]  # warm-up is in the windows
        assert len(scheme["windows"]) == 4
    requests = {s["requests"] for s in found["schemes"]}
    assert len(requests) == 1 and requests.pop() == pytest.approx(18 * 400, rel=0.5)
    padding = found["schemes"][-1]
    assert [r["length"] for r in padding["runtimes"]] == [512]
    assert padding["latency_p50_ms"] > found["schemes"][0]["latency_p50_ms"]


def test_the_same_bytes_for_one_seed(gkest: Callable[..., Outcome], spec: Path) -> None:
    one, other, seeded, faster = (
        gkest(spec, "--table", TABLE, "--format", "json", *more)[1]
        for more in ((), (), ("--seed", "1"), ("--rate-scale", "2"))
    )
    assert one == other and one != seeded and one != faster


@pytest.mark.slow
def test_the_picture_is_the_same_each_time(gkest: Callable[..., Outcome], spec: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / f"{n}.svg" for n in "ab"]
    for path in paths:
        assert gkest(spec, "--table", TABLE, "--plot", path)[0] == 0
    assert paths[0].read_bytes() == paths[1].read_bytes() and b"<svg" in paths[0].read_bytes()


def test_autoscaling_and_a_trace(gkest: Callable[..., Outcome], spec: Path, tmp_path: Path) -> None:
    rows = [f"{t / 100},{1 + t % 700}" for t in range(4000)]
    (tmp_path / "own.csv").write_text("\n".join(["time_s,length", *rows]) + "\n")
    text = SPEC.replace(
        "arrivals: {kind: mmpp, rate_rps: 400}", "arrivals: {trace: own.csv, longer: truncate}"
    )
    text = text.replace("start: expected", "autoscaling: {most: 6, least: 2, low_window_s: 5, check_s: 1}")
    spec.write_text("".join(line + "\n" for line in text.splitlines() if "request_lengths" not in line))
    status, out, err = gkest(spec, "--table", TABLE, "--format", "json")
    assert status == 0, err
    arlo = json.loads(out)["schemes"][0]
    assert arlo["requests"] == 1800 and arlo["removed"] == 2 and arlo["gpus_mean"] < 4
    assert any("cut to it" in note for note in json.loads(out)["notes"])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gpus: 4", "gpus: 0", "gpus: found 0"),
        ("gpus: 4", "gpus: 4\ncolour: red", "colour.*is not a field"),
        ("slo_ms: 150", "slo_ms: 5", "length 384: its latency, 5.034 ms, is above the SLO of 5 ms"),
        ("model: bert-base", "model: nobody", "found no rows"),
        ("kind: mmpp", "kind: weibull", "kind: found 'weibull', expected one of poisson"),
        ("rate_rps: 400", "rate_rps: -1", "rate_rps: found -1"),
        ("rate_rps: 400", "rate_rps: 400, bursts: {factors: [1], sojourns_s: [1]}", "at least two"),
        ("median: 84", "median: 500", "expected 1 <= median < value"),
        ("maximum: 512", "maximum: 600", "longest runtime, 512"),
        ("warmup_s: 2", "warmup_s: 20", "warmup_s: found 20, expected less than the duration"),
        ("start: expected", "start: [4]", r"spec\.yaml: start: .*expected one for each of 8 runtimes"),
        ("start: expected", "start: [4, 0, 0, 0, 0, 0, 0, 0]", "at least one of the longest"),
        ("start: expected", "start: sometimes", "expected even, expected, or a list"),
        ("start: expected", "schemes: [arlo, best]", "schemes: found 'best'"),
        ("start: expected", "schemes: [arlo, arlo]", "each once"),
        ("start: expected", "request_scheduler: {threshold: 0}", "threshold: found 0"),
        ("start: expected", "request_scheduler: {congested: never}", "congested 'never' is not known"),
        ("start: expected", "runtime_scheduler: {at_once: 0}", "at_once: found 0"),
        ("start: expected", "reallocate: false\nruntime_scheduler: {at_once: 1}", "expected one of them"),
        ("start: expected", "autoscaling: {}", "most is missing"),
        ("start: expected", "autoscaling: {most: 5, least: 6}", "expected both ranges to ascend"),
        ("start: expected", "autoscaling: {most: 3}", "found 4 GPUs at the start, expected 1 to 3"),
        ("start: expected", "autoscaling: {most: 9, least: 5}", "found 4 GPUs at the start, expected 5 to 9"),
        (
            "duration_s: 20",
            "duration_s: 2000\nruntime_scheduler: {period_s: 0.01}",
            "at most 100,000 periods",
        ),
        (
            "duration_s: 20",
            "duration_s: 20000\nautoscaling: {most: 9, check_s: 0.01}",
            "at most 1,000,000 checks",
        ),
        (
            "rate_rps: 400",
            "rate_rps: 400, bursts: {factors: [0, 1], sojourns_s: [1.0e-9, 1.0e-9]}",
            "10,000,000 states",
        ),
        ("{kind: mmpp, rate_rps: 400}", "{trace: absent.csv}", "request_lengths: found beside a trace"),
        ("window_s: 5", "window_s: 0.0001", "at most 100,000 windows"),
        ("start: expected", "reallocate: no thanks", "expected true or false"),
        ("duration_s: 20", "duration_s: .nan", "duration_s: found nan"),
    ],
)
def test_wrong_files_are_one_line(
    old: str, new: str, words: str, gkest: Callable[..., Outcome], spec: Path
) -> None:
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new))
    status, out, err = gkest(spec, "--table", TABLE)
    assert status == 2 and out == b""
    (line,) = err.splitlines()
    assert line.startswith("gkest: error: ")
    assert re.search(words, line), line


@pytest.mark.parametrize("name", ["bert-base", "autoscaled"])
def test_the_examples_run(name: str, gkest: Callable[..., Outcome], tmp_path: Path) -> None:
    """As they stand, for a twentieth of the time."""
    text = (EXAMPLES / f"{name}.yaml").read_text()
    short = tmp_path / "short.yaml"
    short.write_text(
        text.replace("duration_s: 600", "duration_s: 30").replace("duration_s: 1200", "duration_s: 60")
    )
    assert "duration_s: 30" in short.read_text() or "duration_s: 60" in short.read_text()
    status, out, err = gkest(short, "--table", TABLE, "--format", "json")
    assert status == 0, err
    assert json.loads(out)["schemes"][0]["requests"] > 10_000


def test_wrong_arguments_are_one_line(gkest: Callable[..., Outcome], spec: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ((spec, "--table", tmp_path / "absent.csv"), "absent.csv"),
        ((tmp_path / "absent.yaml", "--table", TABLE), "absent.yaml"),
        ((spec, "--table", TABLE, "-o", TABLE), "is also used as"),
        ((spec, "--table", TABLE, "-o", tmp_path / "x.xls"), "'.xls'"),
        ((spec, "--table", TABLE, "--plot", tmp_path / "x.gif"), "'.gif'"),
        ((spec, "--table", TABLE, "--rate-scale", "0"), "rate scale: found 0"),
        ((spec, "--table", TABLE, "--rate-scale", "nan"), "rate scale: found nan"),
        ((spec, "--table", TABLE, "-o", tmp_path / "no" / "x.csv"), "cannot be written"),
    ):
        status, out, err = gkest(*arguments)
        assert status == 2 and out == b"" and err.count("\n") == 1 and words in err, err
