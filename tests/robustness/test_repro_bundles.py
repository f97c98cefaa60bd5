"""Damage of bundles that once was called a defect of gkestimator: one line with file and field, exit status 2."""

from __future__ import annotations

import io
import json
import lzma
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gkestimator.bundles import files as bundle_files
from gkestimator.bundles.bundle import load_bundle
from gkestimator.bundles.files import read_arrays, recover_bundle, write_bundle
from gkestimator.cli import run
from gkestimator.core.errors import BundleError, OutputError
from gkestimator.core.leftovers import remove_leftovers
from gkestimator.profiling.building.soundness import sound_sample
from gkestimator.profiling.raw import EnvironmentSample

DEFAULT = Path(str(files("gkestimator.models") / "default"))
ARRAYS = "elementwise_half_unseen.npz"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a bundle whose files are links to those of the package: a test puts its own in their place."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    for path in DEFAULT.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def with_header(header: str, data: bytes = b"\0" * 16) -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def replaced(folder: Path, name: str, data: bytes) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_bytes(data)


def with_member(folder: Path, content: bytes, packing: int = zipfile.ZIP_DEFLATED) -> None:
    """Put an archive whose first array has ``content`` in the place of ``ARRAYS``."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        archive.writestr("bounds.npy", content)
    replaced(folder, ARRAYS, made.getvalue())


def edited(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    change(document)
    replaced(folder, name, json.dumps(document).encode())


def refused(folder: Path, name: str, field: str) -> str:
    """Return the one line that refuses the bundle for ``field`` of its file ``name``."""
    with pytest.raises(BundleError) as caught:
        loaded = load_bundle(folder)
        model = next(model for model in loaded.models if model.path.name == ARRAYS)
        assert model.fitted
    line = str(caught.value)
    assert line.startswith(f"damaged bundle: {folder / name}, {field}") and "\n" not in line
    return line


HEADERS = {
    "truth in a shape": "{'descr':'<f8','fortran_order':False,'shape':(True,)}",
    "cut": "{'descr': (",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n",
    "records": "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2,), }\n",
    "huge": "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807), }\n",
    "too many dimensions": "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1, 1, 1, 1), }\n",
    "other order": "{'descr': '<f8', 'fortran_order': True, 'shape': (2,), }\n",
    "digits": "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }\n",
    "deep": "{'descr': " + "(" * 5000,
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_of_an_array_that_numpy_does_not_write(bundle: Path, case: str) -> None:
    with_member(bundle, with_header(HEADERS[case]))
    refused(bundle, ARRAYS, "array 'bounds'")


def test_a_cut_member_packed_by_lzma(bundle: Path) -> None:
    with_member(bundle, with_header(HEADERS["cut"]), zipfile.ZIP_LZMA)
    data = (bundle / ARRAYS).read_bytes()
    packed = lzma.compress(b"")[:4]
    replaced(bundle, ARRAYS, data[:60] + packed + data[64:])
    refused(bundle, ARRAYS, "array 'bounds'")


def test_a_member_whose_bytes_are_cut(bundle: Path) -> None:
    with_member(bundle, np.random.default_rng(0).bytes(400))
    data = (bundle / ARRAYS).read_bytes()
    replaced(bundle, ARRAYS, data[:60] + bytes(40) + data[100:])
    refused(bundle, ARRAYS, "array 'bounds'")


def test_a_member_that_stands_twice(bundle: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(2):
            archive.writestr("bounds.npy", with_header(HEADERS["cut"]))
    data = made.getvalue()
    replaced(bundle, ARRAYS, data)
    with pytest.raises(BundleError, match="array 'bounds'"):
        read_arrays(bundle / ARRAYS)


DAMAGE: dict[str, tuple[str, Callable[[dict[str, Any]], object], str]] = {
    "list for a text": ("stack.json", lambda d: d["models"][0].update(anchor=[1]), "models[0].anchor"),
    "list for a scope": ("stack.json", lambda d: d["models"][0].update(scope=[1]), "models[0].scope"),
    "object for a list": ("stack.json", lambda d: d["models"][0].update(covers={}), "models[0].covers"),
    "truth for a version": ("stack.json", lambda d: d.update(schema_version=True), "schema_version"),
    "list for a model": ("stack.json", lambda d: d["models"].insert(0, [1]), "models[0]"),
    "chip that is none": ("ranges.json", lambda d: d["linear"].update(chips=[[7, 0, 10**299, 1]]), "linear.chips"),
    "truth for a chip": ("ranges.json", lambda d: d["linear"].update(chips=[[True] * 4]), "linear.chips"),
    "range": ("ranges.json", lambda d: d["linear"].update(low="low"), "linear.low"),
    "rates": ("ranges.json", lambda d: d["linear"].update(dram_bytes_per_s=[[1]]), "linear.dram_bytes_per_s"),
    "width": ("quantiles.json", lambda d: d["linear"].update(beyond=[1]), "linear.beyond"),
    "models of the card": ("card.json", lambda d: d.update(models=[3]), "models[0]"),
    "boards of the card": ("card.json", lambda d: d["models"][0].update(per_gpu_pct=3), "models[0].per_gpu_pct"),
    "splits": ("geometry.json", lambda d: d.update(splits=[[]]), "splits"),
    "offers": ("geometry.json", lambda d: d["pickers"]["conv"].update(offered=[[True]]), "pickers.conv.offered"),
    "board": ("power.json", lambda d: d["regressors"]["linear"]["chips"].insert(0, 1), "regressors.linear.chips[0]"),
    "factor": ("runtimes.json", lambda d: d["laws"]["tensorrt"].update(factors={"conv": 1}), "laws.tensorrt.factors"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_a_value_of_another_type(bundle: Path, case: str) -> None:
    name, change, field = DAMAGE[case]
    edited(bundle, name, change)
    line = refused(bundle, name, field)
    assert len(line) < 600


def test_what_is_no_object(bundle: Path) -> None:
    replaced(bundle, "stack.json", b"[" * 100_000)
    refused(bundle, "stack.json", "all of it")


def test_a_sample_of_the_environment_beyond_all_numbers() -> None:
    sample = EnvironmentSample(unix_ns=1, sm_clock_mhz=10**400)
    assert not sound_sample(sample)


def test_the_command_says_it(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited(bundle, "stack.json", lambda d: d["models"][0].update(anchor=[1]))
    assert run(["estimate", "nothing.onnx", "--gpu", "L4", "--bundle", str(bundle)]) == 2
    assert "damaged bundle: " in capsys.readouterr().err


DOCUMENTS = {"stack": {"schema_version": 1}, "card": {"name": "x"}}


def written(folder: Path, *names: str) -> None:
    write_bundle(folder, DOCUMENTS, {name: {"a": np.zeros(3)} for name in names})


def test_a_bundle_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rename fails, and so does the one that would bring the old bundle back."""
    folder = tmp_path / "b"
    written(folder, "old")
    renames = []
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        renames.append(target)
        if len(renames) > 1:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(bundle_files, "_exchanged", lambda one, other: False)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        with pytest.raises(OutputError, match="cannot be written: Input/output error"):
            written(folder, "new")
    assert len(renames) == 3 and not folder.exists()
    with pytest.raises(BundleError, match=r"/b/ranges\.json"):
        load_bundle(folder)  # no bundle to estimate by, but it is there again
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "old.npz", "stack.json"]
    written(folder, "new")
    assert (folder / "new.npz").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_bundle_is_never_missing_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "b"
    written(folder, "old")

    def no_rename(path: Path, target: Path) -> Path:
        raise AssertionError(f"{path} was renamed to {target}")

    monkeypatch.setattr(Path, "rename", no_rename)
    written(folder, "new")
    assert (folder / "new.npz").is_file() and not (folder / "old.npz").exists()


def test_what_a_killed_training_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    written(folder, "old")
    code = (
        "import os, pathlib, sys\n"
        "from gkestimator.bundles import files\n"
        "files._replace = lambda folder, aside: os.kill(os.getpid(), 9)\n"
        "files.write_bundle(pathlib.Path(sys.argv[1]), {'stack': {}, 'card': {}}, {})"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert killed.returncode == -9 and len(list(tmp_path.iterdir())) == 2
    recover_bundle(tmp_path / "another")  # looked into already: a process removes once what others left
    remove_leftovers.cache_clear()
    recover_bundle(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["b"] and (folder / "old.npz").is_file()
