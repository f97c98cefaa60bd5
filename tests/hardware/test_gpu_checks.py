"""GPU files: a figure ten times too large or too small is refused, in boards, capabilities and flat files."""

from __future__ import annotations

import csv
import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import SpecError
from gkestimator.hardware import gpu_capabilities
from gkestimator.hardware.gpu_boards import expand_board
from gkestimator.hardware.gpu_reading import load_gpu_sheet
from gkestimator.hardware.gpus import gpu_catalogue, load_gpu_file

FOLDER = Path(str(files("gkestimator.datasets"))) / "gpus"
BOARDS = sorted(FOLDER.glob("*.toml"))
CAPABILITIES = sorted((FOLDER / "capabilities").glob("*.toml"))
FLAT = Path(__file__).parents[1] / "data" / "flat_gpus"
SHARED = os.environ.get("GKEST_SHARED")
UNCONSTRAINED = {
    "price_usd_per_hour.value": "a market's price: providers of one board differ by more than ten times",
    "price_per_hour_usd.value": "a market's price: providers of one board differ by more than ten times",
}


def toml(data: Any) -> str:
    """Return ``data`` as one inline value."""
    if isinstance(data, dict):
        return "{" + ", ".join(f"{key} = {toml(value)}" for key, value in data.items()) + "}"
    return json.dumps(data, ensure_ascii=False)


def document(data: dict[str, Any]) -> str:
    """Return ``data`` as a file; tables of tables take a line each, since lines have a longest length."""
    lines = []
    for key, value in data.items():
        if isinstance(value, dict) and value and all(isinstance(entry, dict) for entry in value.values()):
            lines += [f"{key}.{name} = {toml(entry)}" for name, entry in value.items()]
        else:
            lines.append(f"{key} = {toml(value)}")
    return "\n".join(lines) + "\n"


def numbers(data: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each number in ``data``; a ratio or a version in quotes is one."""
    for key, value in data.items():
        here = (*at, key)
        if isinstance(value, dict):
            yield from numbers(value, here)
        elif key == "ratio" or (isinstance(value, int | float) and key != "schema_version"):
            yield here


def times(value: Any, factor: int) -> Any:
    if isinstance(value, str):  # a ratio: "1/64"
        above, _, below = value.partition("/")
        return f"{int(above) * 10}/{below or 1}" if factor > 0 else f"{above}/{int(below or 1) * 10}"
    return value * 10 if factor > 0 else value / 10


def with_changed(data: dict[str, Any], path: tuple[str, ...], factor: int) -> dict[str, Any]:
    """Return a copy of ``data`` whose number at ``path`` is ten times as large (``factor`` 1) or a tenth (-1)."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    table = copy
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = times(table[path[-1]], factor)
    return copy


def survivors(data: dict[str, Any], file: Path) -> list[str]:
    """Return the numbers of ``data`` that may be ten times off without an error of one line that names the file."""
    file.write_text(document(data), encoding="utf-8")
    load_gpu_sheet(file)
    passed = []
    for path in numbers(data):
        for factor in (1, -1):
            file.write_text(document(with_changed(data, path, factor)), encoding="utf-8")
            try:
                load_gpu_sheet(file)
            except SpecError as e:
                assert str(file) in str(e) and "\n" not in str(e)
            else:
                passed.append(".".join(path))
    return sorted(set(passed) - set(UNCONSTRAINED))


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_a_board_with_a_figure_ten_times_off_is_refused(board: Path, tmp_path: Path) -> None:
    data = tomllib.loads(board.read_text(encoding="utf-8"))
    assert survivors(data, tmp_path / "board.toml") == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_a_flat_file_with_a_figure_ten_times_off_is_refused(board: Path, tmp_path: Path) -> None:
    data = expand_board(board, tomllib.loads(board.read_text(encoding="utf-8")))
    assert survivors({"schema_version": 1} | data, tmp_path / "flat.toml") == []


def boards_load(capability: Path) -> bool:
    """Say whether ``capability`` and the packaged boards on it load."""
    try:
        gpu_capabilities.load_capability(capability)
        for board in BOARDS:
            if f"sm_{tomllib.loads(board.read_text())['capability'].replace('.', '')}" == capability.stem:
                load_gpu_sheet(board)
    except SpecError:
        return False
    return True


@pytest.mark.parametrize("shipped", CAPABILITIES, ids=lambda path: path.stem)
def test_a_capability_with_a_figure_ten_times_off_is_refused(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tomllib.loads(shipped.read_text(encoding="utf-8"))
    file = tmp_path / shipped.name
    monkeypatch.setattr(gpu_capabilities, "packaged_folder", lambda: tmp_path)
    file.write_text(document(data), encoding="utf-8")
    gpu_capabilities.capability_of.cache_clear()
    assert boards_load(file)
    passed = []
    for path in numbers(data):
        for factor in (1, -1):
            file.write_text(document(with_changed(data, path, factor)), encoding="utf-8")
            gpu_capabilities.capability_of.cache_clear()
            if boards_load(file):
                passed.append(".".join(path))
    gpu_capabilities.capability_of.cache_clear()
    assert passed == []


def test_an_l2_ten_times_too_large_names_the_fields_and_what_is_expected(tmp_path: Path) -> None:
    text = (FLAT / "T4.toml").read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace('value = 4\nunit = "MiB"', 'value = 40\nunit = "MiB"'), encoding="utf-8")
    with pytest.raises(
        SpecError, match=r"wrong\.toml: \[l2_bytes\] is 40 MiB, .*memory_bus_bits 256 have 1 to 5"
    ):
        load_gpu_file(wrong)


@pytest.mark.parametrize("path", sorted(FLAT.glob("*.toml")), ids=lambda path: path.stem)
def test_a_flat_file_of_the_first_version_says_what_the_board_file_says(path: Path) -> None:
    flat, board = load_gpu_file(path), load_gpu_file(FOLDER / path.name)
    assert all(getattr(flat, f.name) == getattr(board, f.name) for f in fields(flat))


def test_a_board_is_one_short_file(tmp_path: Path) -> None:
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in BOARDS) <= 25
    text = (FOLDER / "L4.toml").read_text(encoding="utf-8").replace('name = "L4"', 'name = "L4-OWN"')
    own = tmp_path / "own.toml"
    own.write_text(text, encoding="utf-8")
    assert gpu_catalogue([own]).spec("l4 own").sms == 58


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'capability = "8.9"',
            'capability = "8.8"',
            r"\[capability\] is '8.8', expected one with a capability file",
        ),
        ("sms = 58", "sms = 29", r"\[fp32.published_tflops\] is 30.3, but 2 x sms"),
        ("sms = 58", "smss = 58", r"\[smss\] is not a field of a GPU board file"),
        ("sms = 58", "sms = true", r"\[sms\] is True, expected a number"),
        ("l2_mib = 48", 'l2_mib = "much"', r"\[l2_bytes\] has the value 'much'"),
        ('pcie = "4.0 x16"', 'pcie = "4"', r"\[pcie\] is '4', expected one like '4.0 x16'"),
        (
            "tensor = ",
            "half_rate_tensor = ['fp64']\ntensor = ",
            r"\[half_rate_tensor\] is .*expected some of tf32",
        ),
    ],
)
def test_a_bad_board_is_an_error_of_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (FOLDER / "L4.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpecError, match=message) as caught:
        load_gpu_file(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_capability_of_ones_own_lies_beside_the_board(tmp_path: Path) -> None:
    (tmp_path / "capabilities").mkdir()
    text = (FOLDER / "capabilities" / "sm_89.toml").read_text(encoding="utf-8")
    own = tmp_path / "capabilities" / "sm_88.toml"
    own.write_text(text.replace('capability = "8.9"', 'capability = "8.8"'), encoding="utf-8")
    board = tmp_path / "own.toml"
    text = (
        (FOLDER / "L4.toml").read_text(encoding="utf-8").replace('capability = "8.9"', 'capability = "8.8"')
    )
    board.write_text(text, encoding="utf-8")
    assert load_gpu_file(board).compute_capability == (8, 8)


_UNITS = {"mhz": "MHz", "_w": "W"}


def _flat_row(row: dict[str, str]) -> dict[str, Any]:
    """Return a row of ``new_gpus.csv`` as the entries of a flat GPU file."""
    data: dict[str, Any] = {"schema_version": 1, "name": row["name"], "architecture": row["architecture"]}
    data["price_per_hour_usd"] = {"value": "unknown", "unit": "USD/h", "date": "unknown", "source": "none"}
    for heading, text in row.items():
        name, _, rest = heading.partition(" (")
        if (
            not text
            or not name.replace(".", "_").islower()
            or name in ("name", "architecture", "aliases", "note")
        ):
            continue
        if name in ("source", "price_date", "price_per_hour_usd", "unsure fields"):
            continue
        unit = rest.split(")")[0].split(",")[0] or next(
            (u for end, u in _UNITS.items() if name.endswith(end)), "1"
        )
        if unit == "T":
            unit = "TOP/s" if name.endswith("int8") else "TFLOP/s"
        value: Any = text if name == "compute_capability" else float(text)
        if name == "memory_bytes":
            value, unit = int(value * 2**30), "B"
        table, _, precision = name.partition(".")
        figure = {"value": value, "unit": unit, "source": "a public source"}
        if precision:
            data.setdefault(table, {})[precision] = figure
        else:
            data[table] = figure
    if row["compute_capability"] == "8.7":  # "unsure" in the table, and the capability file states int8 alone
        for precision in ("tf32", "fp16", "bf16"):
            del data["peak_flops_per_s"][precision]
    memory = data["memory_bytes"]["value"]
    data.setdefault("memory_visible_bytes", {"value": memory, "unit": "B", "source": "not known: all of it"})
    data.setdefault("base_clock_mhz", {"value": "unknown", "unit": "MHz", "source": "none"})
    return data


@pytest.mark.skipif(SHARED is None, reason="wants GKEST_SHARED, the folder of public data")
def test_public_figures_of_other_boards_pass(tmp_path: Path) -> None:
    table = Path(SHARED or "") / "data" / "gpu_specs" / "new_gpus.csv"
    rows = [r for r in csv.DictReader(table.open()) if not r["compute_capability"].startswith("gfx")]
    assert len(rows) > 30
    for row in rows:
        path = tmp_path / f"{row['name']}.toml"
        path.write_text(document(_flat_row(row)), encoding="utf-8")
        assert load_gpu_file(path).name == row["name"]
