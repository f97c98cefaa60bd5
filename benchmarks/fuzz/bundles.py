"""Send commands bundles whose JSON, archives, arrays or files were changed.

Seeds are the bundle of the package, and one of an L4 that is trained here on a dataset of a few made-up rows.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import random
import shutil
import sys
import zipfile
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from benchmarks.fuzz.onnx_texts import TEXTS
from benchmarks.fuzz.wires import mutate_bytes

_NUMBERS = (
    0, -1, 1, 2, 7, 255, 2**31, 2**53, 2**63, 10**300, 10**400, 0.0, -0.5, 1e-300, 1e12, 1e308, 0.1, True, False,
)  # fmt: skip
_TEXTS = (
    "",
    "fp16",
    "linear",
    "L4",
    "seen",
    "roofline",
    "../../etc/passwd",
    "a" * 300,
    "\x1b[31m",
    "é\u202e",
    "\ud800",
)
_DTYPES = ("<f4", "<f8", "<f2", "|u1", "<i8", "<u8", "|i1", ">f4", "|O", "<U3", "<c8", "|b1", "<M8[s]", "|V8")
_HEADERS = (
    "{'descr': (",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9223372036854775807), }\n",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
    "[" * 9000,
    "__import__('os').abort()",
)


def prepare(cache: Path) -> None:
    """Write a model, a trained bundle and a copy of the package's; run what loads modules and the bundle once."""
    from gkestimator.cli import run

    shutil.copytree(Path(str(files("gkestimator.models") / "default")), cache / "default")
    model = onnx.parser.parse_model(TEXTS["conv"])
    onnx.save(model, str(cache / "model.onnx"))
    _train(cache / "measured")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name in ("default", "measured"):
            arguments = ["--gpu", "L4,V100", "--bundle", str(cache / name)]
            run(["estimate", str(cache / "model.onnx"), *arguments, "--kernels"])


def _train(folder: Path) -> None:
    """Write a bundle of a measured L4, trained on operators that take what a law says."""
    from gkestimator.training import train

    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "training"))
    law = importlib.import_module("measured_law")
    dataset = law.write_dataset(folder.with_suffix(".parquet"), law.measurements(40, counters=True))
    train([dataset], folder)


def case(rng: random.Random, cache: Path, folder: Path) -> Sequence[str]:
    """Lay links to the files of a bundle into ``folder``, one or two of them changed; return a command that reads it."""
    seed = cache / rng.choice(("default", "measured"))
    bundle = folder / "bundle"
    for source in seed.rglob("*"):
        if source.is_file():
            target = bundle / source.relative_to(seed)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, target)
    names = sorted(path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file())
    # what is measured, or read for every command, is changed more often than one of forty regressors
    often = [
        name for name in names if name.suffix == ".json" or name.name.startswith(("g0_", "linear", "conv"))
    ]
    for _ in range(rng.choice((1, 1, 1, 2))):
        _change(bundle, rng.choice(often if rng.random() < 0.7 else names), names, rng)
    model = str(cache / "model.onnx")
    gpu = rng.choice(("L4", "V100", "L4,H100"))
    arguments = ["estimate", model, "--gpu", gpu, "--bundle", "bundle"]
    if rng.random() < 0.15:
        # as one of the user's own, which every command takes; the process is this case's alone
        os.environ["GKEST_HOME"] = str(folder)
        (folder / "models").mkdir()
        bundle.rename(folder / "models" / "bundle")
        del arguments[-2:]
    options: list[tuple[float, list[str]]] = [
        (0.5, ["--dtype", rng.choice(("fp16", "int8", "tf32"))]),
        (0.4, ["--runtime", rng.choice(("tensorrt", "onnxruntime"))]),
        (0.4, ["--kernels"]),
        (0.3, ["--batch-size", rng.choice(("1", "64", "100000"))]),
        (0.2, ["--sm-share", "25"]),
        (0.3, ["--format", rng.choice(("csv", "json"))]),
    ]
    for probability, words in options:
        if rng.random() < probability:
            arguments += words
    return arguments


def _change(bundle: Path, name: Path, names: Sequence[Path], rng: random.Random) -> None:
    """Change one file of the bundle, or put another in its place."""
    path = bundle / name
    if not path.is_file():
        return
    data = path.read_bytes()
    path.unlink()  # a link to the seed
    kind = rng.random()
    if kind < 0.04:
        return  # it is missing
    if kind < 0.08:
        other = bundle / rng.choice(names)
        data = other.read_bytes() if other.is_file() else b""
    elif kind < 0.1:
        path.mkdir()
        return
    elif kind < 0.25:
        data = mutate_bytes(data, rng)
    else:
        change = {".json": _changed_json, ".npz": _changed_archive}.get(path.suffix, mutate_bytes)
        with contextlib.suppress(ValueError, zipfile.BadZipFile, zlib.error):  # damaged before: left as it is
            data = change(data, rng)
    path.write_bytes(data)


def _changed_json(data: bytes, rng: random.Random) -> bytes:
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change_value(document, rng)
    text = json.dumps(document)
    if rng.random() < 0.03:
        return rng.choice(("[" * 200_000, '{"a":' * 100_000, "9" * 5000, "NaN", '"x"', text * 2, "")).encode()
    if rng.random() < 0.05:
        text = text.replace("1", "1e999", 1)
    return text.encode("utf-8", "surrogatepass")


def _change_value(value: Any, rng: random.Random) -> None:
    """Change one value somewhere in a document."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.8:
            value = value[key]
            continue
        match rng.randrange(7):
            case 0:
                del value[key]
            case 1:
                value[key] = rng.choice(_NUMBERS)
            case 2:
                value[key] = rng.choice(_TEXTS)
            case 3:
                value[key] = rng.choice((None, [], {}, [value[key]], [[1]], {"a": 1}))
            case 4:
                value[key] = -value[key] if isinstance(value[key], int | float) else [value[key]] * 100
            case 5 if isinstance(value, list):
                value.extend(value * rng.choice((1, 3)))
            case 6 if isinstance(value, dict):
                value[rng.choice((*_TEXTS, key))] = value[rng.choice(keys)]
        return


def _changed_archive(data: bytes, rng: random.Random) -> bytes:
    """Return an archive of arrays of which one was changed, or the archive itself."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    packing = zipfile.ZIP_DEFLATED
    match rng.randrange(6):
        case 0:
            members[name] = _header(rng.choice(_HEADERS)) + members[name][-64:]
        case 1:
            del members[name]
        case 2:
            members[rng.choice((*members, "../../x.npy", "x", "a" * 300 + ".npy", "lasso.weights.npy"))] = (
                members[name]
            )
        case 3:
            packing = rng.choice((zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_STORED))
        case _:
            members[name] = _changed_array(members[name], rng)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    packed = made.getvalue()
    if rng.random() < 0.2:
        return mutate_bytes(packed, rng)
    return packed


def _header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _changed_array(content: bytes, rng: random.Random) -> bytes:
    """Return an array of other values, another shape or another type."""
    array = np.load(io.BytesIO(content)).copy()
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        match rng.randrange(6):
            case 0:
                extremes = (
                    (np.nan, np.inf, -np.inf, 1e308, -1e12, 0.0) if array.dtype.kind == "f" else (0, 127, 255)
                )
                chosen = slice(None) if rng.random() < 0.3 else rng.randrange(max(1, flat.size))
                flat[chosen] = np.array(rng.choice(extremes)).astype(array.dtype)
            case 1:
                array = array[: len(array) // 2]
            case 2:
                array = array.reshape((1, *array.shape)) if rng.random() < 0.5 else array.T
            case 3:
                array = np.concatenate([array] * rng.choice((2, 9)))
            case 4:
                array = -array
            case 5:
                return content.replace(array.dtype.str.encode(), rng.choice(_DTYPES).encode(), 1)
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()
