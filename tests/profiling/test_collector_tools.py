"""Tools as subprocesses: found, versions read, time limits kept, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gkestimator.profiling.tools import (
    NCU,
    NSYS,
    ToolError,
    complaint,
    find_tool,
    run_tool,
    start_tool,
    tool_version,
)

VARIABLES = ("GKEST_NSYS", "GKEST_NCU", "GKEST_NSIGHT")


@pytest.fixture(autouse=True)
def _no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("gkestimator.profiling.tools._installed", lambda tool: iter(()))


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def alive(word: str) -> list[str]:
    """Command lines, zombies left out, that hold ``word``."""
    lines = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in lines.splitlines() if word in line and not line.startswith("Z")]


def gone(word: str, within_s: float = 5.0) -> bool:
    ends = time.monotonic() + within_s
    while alive(word):
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def test_status_and_output_of_both_streams() -> None:
    result = run_tool(["/bin/sh", "-c", "echo one; echo two >&2; exit 7"], timeout_s=20)
    assert (result.status, result.timed_out) == (7, False)
    assert result.output.split() == ["one", "two"]


def test_a_signal_is_a_negative_status() -> None:
    assert run_tool(["/bin/sh", "-c", "kill -SEGV $$"], timeout_s=20).status == -11


def test_much_output_is_kept_at_both_ends() -> None:
    result = run_tool(
        [sys.executable, "-c", "print('first'); print('x' * 5_000_000); print('last')"], timeout_s=60
    )
    assert len(result.output) < 1_100_000
    assert result.output.startswith("first") and result.output.rstrip().endswith("last")


@pytest.mark.slow
def test_a_hanging_tool_is_ended_with_what_it_started() -> None:
    # As nsys does: the program goes into a session of its own, and an agent loses its parent.
    word = f"{time.time_ns()}.25"
    hang = f"trap '' TERM; setsid sleep {word} & (setsid setsid sleep {word} &) ; sleep {word}"
    started = time.monotonic()
    result = run_tool(["/bin/sh", "-c", f"{hang} # {word}"], timeout_s=1.0)
    assert result.timed_out
    assert time.monotonic() - started < 20
    assert gone(word)


def test_a_tool_that_ended_leaves_no_agent() -> None:
    word = f"{time.time_ns()}.5"
    result = run_tool(["/bin/sh", "-c", f"setsid sleep {word} & exit 0"], timeout_s=20)
    assert result.status == 0
    assert gone(word)


@pytest.mark.slow
def test_two_tools_do_not_end_each_other(tmp_path: Path) -> None:
    word = f"{time.time_ns()}.75"
    with start_tool(["sleep", word], output=tmp_path / "log") as other:
        run_tool(["/bin/sh", "-c", "setsid sleep 60 & sleep 60"], timeout_s=0.3)
        assert other.poll() is None
    assert gone(word)


def test_what_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be started: No such file") as e:
        run_tool([str(tmp_path / "absent")], timeout_s=5)
    assert "\n" not in str(e.value)


def test_tools_are_asked_for_english() -> None:
    assert (
        run_tool(["/bin/sh", "-c", "echo $LC_ALL"], timeout_s=5, env={"LANG": "de_DE"}).output.strip()
        == "C.UTF-8"
    )


def test_none_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_tool(NSYS) is None


def test_order_of_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cached = [
        script(tmp_path / "cache" / "gkestimator" / f"nsight-{v}" / "bin" / "nsys", "") for v in ("9", "10")
    ]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_tool(NSYS) == cached[1]  # 10 is newer than 9
    on_path = script(tmp_path / "path" / "nsys", "")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_tool(NSYS) == on_path
    prefix = script(tmp_path / "prefix" / "bin" / "nsys", "")
    monkeypatch.setenv("GKEST_NSIGHT", f"{tmp_path / 'absent'}:{tmp_path / 'prefix'}")
    assert find_tool(NSYS) == prefix
    named = script(tmp_path / "named", "")
    monkeypatch.setenv("GKEST_NSYS", str(named))
    assert find_tool(NSYS) == named


def test_a_wrong_variable_is_an_error_not_another_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GKEST_NCU", str(tmp_path))
    with pytest.raises(ToolError, match="GKEST_NCU: found .* expected the path of an executable ncu"):
        find_tool(NCU)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0", "2023.4.4.54"),
        ("NVIDIA Nsight Systems version 2021.3.3.2-b99c4d6", "2021.3.3.2"),
        ("NVIDIA (R) Nsight Compute\nVersion 2024.1.1.0 (build 33998838) (public-release)", "2024.1.1.0"),
        ("hello", None),
    ],
)
def test_versions(tmp_path: Path, said: str, version: str | None) -> None:
    assert tool_version(script(tmp_path / "tool", f"cat <<'X'\n{said}\nX")) == version


def test_a_replaced_tool_is_asked_again(tmp_path: Path) -> None:
    tool = script(tmp_path / "tool", "echo version 2022.1")
    assert tool_version(tool) == "2022.1"
    script(tool, "echo version 2023.2")
    os.utime(tool, ns=(1, 1))
    assert tool_version(tool) == "2023.2"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("[1/1] [==50% ] a.nsys-rep\r[1/1] [100%] a\nSKIPPED: no data\nlast", "SKIPPED: no data"),
        ("==PROF== x\n==ERROR== no\n", "==ERROR== no"),
        ("one\ntwo\n", "two"),
        ("[1/1] [100%] a.nsys-rep\r", None),
        ("", None),
    ],
)
def test_what_a_tool_complains_of(output: str, line: str | None) -> None:
    assert complaint(output) == line
