"""The real process: a closed pipe, a full device, the time of --help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GKEST = [sys.executable, "-c", "from gkestimator.cli import main; main()"]


def test_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen([*GKEST, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_is_one_line(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*GKEST, "doctor"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60, env=environment
        )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("gkest: error: ")
    assert done.stderr.count(b"\n") == 1, done.stderr


@pytest.mark.parametrize(("arguments", "status"), [(["gpus", "T4"], 0), (["gpus", "T5000"], 2)])
def test_the_status_is_told_where_nothing_else_can_be(arguments: list[str], status: int) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*GKEST, *arguments], stdout=subprocess.DEVNULL, stderr=full, check=False, timeout=60
        )
    assert done.returncode == status


def test_version() -> None:
    done = subprocess.run([*GKEST, "--version"], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("gkest ")


@pytest.mark.parametrize("how", ["same", "link", "spec"])
def test_the_output_never_replaces_what_is_read(tmp_path: Path, how: str) -> None:
    model, spec = tmp_path / "m.onnx", tmp_path / "g.toml"
    model.write_bytes(b"worth keeping")
    spec.write_bytes(b"worth keeping too")
    (tmp_path / "link").symlink_to(model)
    output = {"same": model, "link": tmp_path / "link", "spec": spec}[how]
    asked = ["estimate", model, "--gpu", "T4", "--gpu-spec", spec, "--format", "json", "-o", output]
    done = subprocess.run([*GKEST, *map(str, asked)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "is also used" in done.stderr
    assert model.read_bytes() == b"worth keeping" and spec.read_bytes() == b"worth keeping too"


@pytest.mark.slow
def test_a_name_with_control_characters_is_named_once_and_without_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [*GKEST, "estimate", "\x1b[31mred.onnx", "--gpu", "T4"], capture_output=True, text=True, check=False,
        timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "\x1b" not in done.stderr and done.stderr.count("red.onnx") == 1
