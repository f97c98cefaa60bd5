"""Bundles of measured GPUs as files: hostile, mutated, of other data; and what training refuses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from measured_law import (
    GPU,
    kernels_of,
    measurements,
    unseen,
    write_dataset,
)

from gkestimator.bundles.bundle import load_bundle
from gkestimator.cli import run
from gkestimator.core.errors import BundleError, GkestimatorError, OutputError, TableError, UsageError
from gkestimator.core.extras import install_extra
from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.tables import KERNEL_DATASET, read_table
from gkestimator.training import train
from gkestimator.training.train_measured import MeasuredReport

for library in ("sklearn", "scipy", "xgboost", "lightgbm", "pyarrow"):
    pytest.importorskip(library)
L4 = gpu_catalogue().resolve(GPU)[0]


def edit(name: str, change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        change(document)
        (folder / name).write_text(json.dumps(document))

    return apply


def arrays(name: str, **changes: np.ndarray) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with np.load(folder / name) as found:
            kept = {key: found[key] for key in found.files}
        np.savez(folder / name, **{**kept, **changes})

    return apply


GPU0, FIRST = (lambda d: d["gpus"][0]), (lambda d: d["gpus"][0]["corrections"][0])
HOSTILE = {
    "no base": lambda f: shutil.rmtree(f / "base"),
    "base within base": lambda f: shutil.copy(f / "measured.json", f / "base" / "measured.json"),
    "broken base": edit("base/stack.json", lambda d: d.update(schema_version=99)),
    "version": edit("measured.json", lambda d: d.update(schema_version=99)),
    "no gpus": edit("measured.json", lambda d: d.update(gpus=[])),
    "gpu text": edit("measured.json", lambda d: d.update(gpus=["L4"])),
    "chip": edit("measured.json", lambda d: GPU0(d).update(chip=[8, 9])),
    "path in a name": edit("measured.json", lambda d: FIRST(d).update(name="../../etc/passwd")),
    "reserved name": edit("measured.json", lambda d: FIRST(d).update(name="lowering")),
    "twice": edit("measured.json", lambda d: GPU0(d)["corrections"].append(FIRST(d))),
    "features": edit("measured.json", lambda d: FIRST(d).update(features="quantum")),
    "other features": edit("measured.json", lambda d: FIRST(d)["feature_names"].__setitem__(0, "moon")),
    "fewer features": edit("measured.json", lambda d: FIRST(d)["feature_names"].pop()),
    "reference": edit("measured.json", lambda d: FIRST(d).update(reference="wish")),
    "negative width": edit("measured.json", lambda d: FIRST(d).update(factors=[-1, 0, 0])),
    "covers": edit("measured.json", lambda d: FIRST(d).update(covers=[["linear"]])),
    "shift": edit("measured.json", lambda d: GPU0(d).update(shift={"value": 1e9, "half_width": 0})),
    "truth": edit("measured.json", lambda d: GPU0(d).update(lowering="yes")),
    "missing arrays": lambda f: next(f.glob("g0_linear*.npz")).unlink(),
    "missing lowering": lambda f: (f / "g0_lowering.json").unlink(),
    "range": arrays("g0_linear_fp32.npz", low=np.full(3, np.nan)),
    "negative time": arrays("g0_lowering.npz", duration_us=np.full(280, -1.0)),
    "infinite time": arrays("g0_lowering.npz", duration_us=np.full(280, np.inf)),
    "launches of another call": arrays("g0_lowering.npz", first=np.zeros(281, dtype=np.int64)),
    "occupancy": arrays("g0_lowering.npz", launches=np.full((350, 6), 101.0)),
    "words": edit("g0_lowering.json", lambda d: d["words"].update(name=["x" * 500])),
    "kinds": edit("g0_lowering.json", lambda d: d["words"].update(kind=["dance"])),
    "index": arrays("g0_lowering.npz", family=np.full(280, 77, dtype=np.int32)),
    "count": edit("g0_lowering.json", lambda d: d.update(calls=10**9)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_folder_is_refused_in_one_line(
    case: str, trained_l4: tuple[Path, MeasuredReport], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(trained_l4[0], folder)
    HOSTILE[case](folder)
    with pytest.raises(BundleError) as caught:
        load_bundle(folder).under("torch").predict(
            KernelTable.from_kernels([k for _, f in unseen(1) for k in kernels_of(f)]), L4
        )
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_what_cannot_be_trained_on_is_said_in_one_line(tmp_path: Path) -> None:
    rows = [replace(r, quality="noisy") for r in measurements(2)]
    with pytest.raises(TableError, match="noisy or throttled"):
        train([write_dataset(tmp_path / "noisy.parquet", rows)], tmp_path / "b")
    bad = [replace(r, graph='{"nodes": 3}') for r in measurements(1)]
    with pytest.raises(TableError, match="row 1, column graph"):
        train([write_dataset(tmp_path / "bad.parquet", bad)], tmp_path / "b")
    short = [r for r in measurements(2) if r.kernel_index == 0]
    report = train([write_dataset(tmp_path / "short.parquet", short)], tmp_path / "c")
    assert isinstance(report, MeasuredReport) and report.gpus[0].skipped["launches missing"] == 2


@pytest.mark.slow
def test_a_dataset_in_csv_trains_the_same(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "l4.parquet", measurements(12))
    write_dataset(tmp_path / "l4.csv", read_table(dataset, KERNEL_DATASET))
    train([dataset], tmp_path / "from_parquet")
    train([tmp_path / "l4.csv"], tmp_path / "from_csv")
    name = "measured.json"
    assert (tmp_path / "from_csv" / name).read_bytes() == (tmp_path / "from_parquet" / name).read_bytes()


def test_missing_libraries_are_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_read.csv").write_text("")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=re.escape(f"scipy, sklearn, xgboost, lightgbm: {install_extra('train')}")
    ):
        train([tmp_path / "never_read.csv"], tmp_path / "out")


@pytest.mark.slow
def test_a_measured_bundle_is_no_base(trained_l4: tuple[Path, MeasuredReport], tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d.parquet", measurements(2))
    with pytest.raises(BundleError, match="train together"):
        train([dataset], tmp_path / "b", base=trained_l4[0])
    with pytest.raises(
        OutputError, match="tells them apart"
    ):  # `source` would not say which of the two answered
        train([dataset], tmp_path / "default")
    with pytest.raises(GkestimatorError, match="no such bundle"):
        train([dataset], tmp_path / "b", base=tmp_path / "nowhere")


@pytest.mark.slow
def test_without_a_base_the_rows_stand_alone(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d.parquet", measurements(250, noise=0.01))
    report = train([dataset], tmp_path / "alone", base=None)
    assert {m.name for m in report.models} >= {"linear", "elementwise", "softmax", "conv"}  # type: ignore[union-attr]
    assert not load_bundle(tmp_path / "alone").measured


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["measured.json", "g0_lowering.json", "g0_lowering.npz", "g0_linear_fp32.npz", "g0_occupancy.npz"]
)
def test_a_mutated_file_answers_or_is_refused_in_one_line(
    name: str, trained_l4: tuple[Path, MeasuredReport], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(trained_l4[0], folder)
    original = (folder / name).read_bytes()
    rng = np.random.default_rng(7)
    table = KernelTable.from_kernels([k for _, f in unseen(1) for k in kernels_of(f)])
    refused = 0
    for _ in range(25):
        data = bytearray(original)
        for at in rng.integers(0, len(data), 3):
            data[at] = rng.integers(0, 256)
        (folder / name).write_bytes(bytes(data[: rng.integers(1, len(data))] if rng.random() < 0.3 else data))
        try:
            answer = load_bundle(folder).under("torch").predict(table, L4)
        except BundleError as e:
            refused += 1
            assert "\n" not in str(e)
        else:
            assert np.isfinite(answer.duration_us).all() and (answer.duration_us > 0).all()
    assert refused


@pytest.mark.slow
def test_the_command_trains_and_says_what_it_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = write_dataset(tmp_path / "d.parquet", measurements(15))
    assert run(["train", str(dataset), "-o", str(tmp_path / "2nd try")]) == 0
    done = capsys.readouterr()
    assert "L4: 60 measured calls, 60 distinct kernels" in done.out and "elementwise" in done.out
    assert load_bundle(tmp_path / "2nd try").name == "bundle_2nd_try"
    for arguments, said in (
        (["--base", str(tmp_path / "nowhere")], "no such bundle folder"),
        (["--gpu-spec", str(tmp_path / "no.toml")], "no.toml"),
    ):
        assert run(["train", str(dataset), *arguments, "-o", str(tmp_path / "b")]) == 2
        refused = capsys.readouterr().err.strip().splitlines()
        assert said in refused[-1] and refused[-1].startswith("gkest: error:")
    assert not (tmp_path / "b").exists()
