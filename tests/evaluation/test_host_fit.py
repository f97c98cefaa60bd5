"""This host's figures: recovered from measurements, refused where the rows do not tell them, written and used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from gkestimator.core.errors import OutputError, SpecError, UsageError
from gkestimator.estimation import estimate_rows
from gkestimator.estimation.doctor import diagnose
from gkestimator.evaluation.api import evaluate
from gkestimator.hardware.host_profile import HostProfile, load_host_file, write_host_file
from gkestimator.hardware.runtimes.profiles import load_runtime

WriteTruth = Callable[..., Path]
GPU = "A100-SXM4-80GB"


@pytest.mark.slow
@pytest.mark.parametrize("overhead", [6.5, 20.0, 90.0])
def test_the_overhead_of_a_perturbed_truth_is_recovered(
    write_truth: WriteTruth, models: list[Path], overhead: float
) -> None:
    truth = write_truth(overhead_us=overhead, gpu=GPU)
    (fit,) = evaluate(truth, models=models, gpu=GPU).fit_host()
    assert fit.host_overhead_us == pytest.approx(overhead, rel=0.01)
    assert fit.copy_bytes_per_s is None and fit.rate_range is None
    assert (fit.rows, fit.models, fit.gpus) == (20, 4, (GPU,))
    assert fit.host_rows >= 2
    assert fit.overhead_range_us is not None and fit.after_pct is not None
    assert fit.overhead_range_us[0] <= overhead * 1.03 and fit.overhead_range_us[1] >= overhead * 0.97
    assert fit.after_pct[1] < 4 < fit.before_pct[0]  # the profile's 37 us a call was wrong here


@pytest.mark.slow
def test_overhead_and_copies_are_told_apart(
    write_truth: WriteTruth, models: list[Path], tmp_path: Path
) -> None:
    host = tmp_path / "other.toml"
    sources = {"copy_bytes_per_s.torch": "a test"}
    write_host_file(
        HostProfile(name="x", host_overhead_us={}, copy_bytes_per_s={"torch": 3e9}, sources=sources), host
    )
    truth = write_truth(overhead_us=15.0, gpu=GPU, host=host, include_copy=True)
    (fit,) = evaluate(truth, models=models, gpu=GPU, include_copy=True).fit_host()
    assert fit.host_overhead_us == pytest.approx(15, rel=0.01)
    assert fit.copy_bytes_per_s == pytest.approx(3e9, rel=0.02)
    assert fit.copy_rows >= 2 and fit.rate_range is not None
    assert fit.after_pct is not None and fit.after_pct[1] < 4


@pytest.mark.slow
def test_copies_are_not_fitted_where_none_are_measured(write_truth: WriteTruth, models: list[Path]) -> None:
    (fit,) = evaluate(write_truth(gpu=GPU), models=models, gpu=GPU).fit_host()
    assert fit.copy_bytes_per_s is None and fit.copy_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("batches, overhead", [((64, 128), 5.0), ((32,), 0.3)])
def test_rows_that_do_not_tell_are_refused(
    write_truth: WriteTruth, models: list[Path], batches: tuple[int, ...], overhead: float
) -> None:
    result = evaluate(write_truth(overhead_us=overhead, gpu="T4", batches=batches), models=models, gpu="T4")
    with pytest.raises(
        UsageError, match="do not tell the host's launch overhead: fewer than 2 wait for the host"
    ):
        result.fit_host()


def test_one_row_is_not_enough(write_truth: WriteTruth, models: list[Path]) -> None:
    frame = pandas.read_csv(write_truth(gpu=GPU)).head(1)
    with pytest.raises(UsageError, match="1 rows do not tell"):
        evaluate(frame, models=models, gpu=GPU).fit_host()
    memory = frame.drop(columns="latency_ms")
    with pytest.raises(UsageError, match="no row has a measured and an estimated latency"):
        evaluate(memory, models=models, gpu=GPU).fit_host()


def test_one_model_is_fitted_and_said_to_be_untested(write_truth: WriteTruth, models: list[Path]) -> None:
    frame = pandas.read_csv(write_truth(overhead_us=30, gpu=GPU, outliers=False, noise=(1.0,)))
    frame = frame[frame["model"] == "light_densenet121"]
    result = evaluate(frame, models=models, gpu=GPU)
    (fit,) = result.fit_host()
    assert fit.host_overhead_us == pytest.approx(30, rel=0.01)
    assert fit.after_pct is None and fit.overhead_range_us is None
    assert "not tested: one model only" in result.host_profile([fit]).sources["host_overhead_us.torch"]


@pytest.mark.slow
def test_each_runtime_has_its_own(models: list[Path]) -> None:
    rows = []
    for runtime, overhead in (("torch", 30.0), ("onnxruntime", 12.0)):
        for r in estimate_rows(
            models, gpus=[GPU], batch_sizes=[1, 2], runtime=runtime, host_overhead_us=overhead
        ).rows:
            rows.append(
                {"model": r.model, "batch_size": r.batch_size, "latency_ms": r.latency_ms, "runtime": runtime}
            )
    result = evaluate(pandas.DataFrame(rows), models=models, gpu=GPU)
    fits = {fit.runtime: fit.host_overhead_us for fit in result.fit_host()}
    assert fits == {"torch": pytest.approx(30, rel=0.01), "onnxruntime": pytest.approx(12, rel=0.01)}


@pytest.mark.slow
def test_written_read_and_used(
    write_truth: WriteTruth, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = write_truth(overhead_us=20.0, gpu=GPU)
    path = tmp_path / "gkest-home" / "host.toml"
    path.parent.mkdir()
    (fit,) = evaluate(truth, models=models, gpu=GPU).write_host(path)
    profile = load_host_file(path)
    assert fit.row_range_us is not None and fit.host_overhead_us is not None
    low, high = profile.overhead_range_us("torch") or (0, 0)
    assert (low, high) == pytest.approx(fit.row_range_us, rel=1e-3)
    assert 18 < low <= fit.host_overhead_us <= high  # NOISE is one percent; every tenth row is twice as slow
    assert profile.overhead_range_us("onnxruntime") is None
    assert profile.host_overhead_us == {"torch": pytest.approx(fit.host_overhead_us, rel=1e-3)}
    source = profile.sources["host_overhead_us.torch"]
    for word in ("measured.csv", "20 rows, 4 models", GPU, "% (median", "models left out", "rows host-bound"):
        assert word in source

    def overhead(**options: object) -> tuple[float | None, tuple[str, ...]]:
        result = estimate_rows(models[:1], gpus=[GPU], batch_sizes=[1], **options)  # type: ignore[arg-type]
        return result.rows[0].host_overhead_us, result.messages

    found, messages = overhead()  # $GKEST_HOME/host.toml, and it is said
    assert found == pytest.approx(20, rel=0.01)
    assert messages[0].startswith(f"host profile {path} is used")
    assert any(
        "measured.csv" in m for m in messages
    )  # where the figure is from, in the words on host-bound rows
    assert overhead(host_overhead_us=50.0)[0] == 50  # the option wins
    assert (
        overhead(runtime="onnxruntime")[0] == load_runtime("onnxruntime").host_overhead_us
    )  # not in the file
    facts = dict(diagnose())["Host profile"]
    assert facts[0][0] == "host.toml" and f"us a call (torch) from {path}" in facts[0][1]
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "elsewhere"))
    assert dict(diagnose())["Host profile"][0][1].startswith("none; ")
    assert overhead()[0] == load_runtime("torch").host_overhead_us
    found, messages = overhead(host=path)  # named: nothing to say but the source
    assert found == pytest.approx(20, rel=0.01) and not messages[0].startswith("host profile")
    again = evaluate(truth, models=models, gpu=GPU, host=path)
    assert again.compared[0].host_overhead_us == pytest.approx(20, rel=0.01)
    medians = [
        next(s.median for s in r.summarised if s.scope == "gpu")
        for r in (again, evaluate(truth, models=models, gpu=GPU))
    ]
    assert medians[0] < 4 < medians[1]


def test_the_copy_rate_of_the_profile_moves_copies(models: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    path.write_text(
        'schema_version = 1\nname = "x"\n[copy_bytes_per_s.torch]\nvalue = 5\nunit = "GB/s"\nsource = "measured"\n'
    )
    plain, other = (
        estimate_rows(models[:1], gpus=["T4"], batch_sizes=[8], host=host).rows[0] for host in (None, path)
    )
    assert plain.copy_ms is not None and other.copy_ms is not None
    rate = load_runtime("torch").copy_bytes_per_s
    assert other.copy_ms / plain.copy_ms == pytest.approx(rate / 5e9)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "schema_version"),
        ('schema_version = 1\nname = "x"\n', "holds no figure"),
        ('schema_version = 1\nname = "x"\n[host_overhead_us.cupy]\nvalue = 1\nunit = "us"\nsource = "s"\n', "cupy"),
        ('schema_version = 1\nname = "x"\n[host_overhead_us.torch]\nvalue = -1\nunit = "us"\nsource = "s"\n', "-1"),
        ('schema_version = 1\nname = "x"\n[host_overhead_us.torch]\nvalue = nan\nunit = "us"\nsource = "s"\n', "nan"),
        ('schema_version = 1\nname = "x"\n[host_overhead_us.torch]\nvalue = 1\nunit = "s"\nsource = "s"\n', "unit"),
        ('schema_version = 1\nname = "x"\n[host_overhead_us.torch]\nvalue = 1\nunit = "us"\n', "source"),
        ("schema_version = 1\n[", "not a host profile"),
    ],
)  # fmt: skip
def test_a_bad_profile_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "host.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=words) as caught:
        load_host_file(path)
    assert str(path) in str(caught.value)


def test_a_profile_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read this host profile"):
        load_host_file(tmp_path / "absent.toml")
    profile = HostProfile(
        name='odd "name"\n', host_overhead_us={"torch": 3.25}, copy_bytes_per_s={"torch": 12.5e9},
        sources={"host_overhead_us.torch": 'a "source"\\ and more', "copy_bytes_per_s.torch": "ä" * 900},
    )  # fmt: skip
    with pytest.raises(OutputError):
        write_host_file(profile, Path("/dev/full"))
    write_host_file(profile, tmp_path / "host.toml")
    read = load_host_file(tmp_path / "host.toml")
    assert read.name == 'odd "name"' and read.host_overhead_us == {"torch": 3.25}
    assert read.copy_bytes_per_s == {"torch": pytest.approx(12.5e9)}
    assert read.sources["host_overhead_us.torch"] == 'a "source"\\ and more'
