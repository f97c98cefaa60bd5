"""docs/how-to/profiling.md, word by word: its commands without a GPU are run as they stand, with the real nsys where it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

for library in ("onnxruntime", "pyarrow", "sklearn", "xgboost", "lightgbm"):
    pytest.importorskip(library)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to/profiling.md"


def commands() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(
        r"<!-- walk-through: begin -->\n```sh\n(.*?)```\n<!-- walk-through: end -->", text, re.DOTALL
    )
    assert found is not None
    return found[1].strip().splitlines()


def nsight() -> list[Path]:
    """Folders with an nsys, newest first: of GKEST_NSIGHT, else of PATH."""
    listed = [Path(p) / "bin" for p in os.environ.get("GKEST_NSIGHT", "").split(":") if p]
    on_path = shutil.which("nsys")
    return [p for p in listed if (p / "nsys").exists()] or ([Path(on_path).parent] if on_path else [])


def walk(folder: Path, path_first: Path | None) -> dict[str, subprocess.CompletedProcess[str]]:
    shims = folder / "bin"
    shims.mkdir()
    gkest = shims / "gkest"
    gkest.write_text(
        f"#!/bin/sh\nexec {sys.executable} -P -c 'from gkestimator.cli import main; main()' \"$@\"\n"
    )
    gkest.chmod(0o755)
    path = os.pathsep.join([str(shims), *([str(path_first)] if path_first else []), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "GKEST_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    work = folder / "work"
    work.mkdir()
    done = {}
    for command in commands():
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=work,
            env=env,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        done[" ".join(command.split()[:3])] = result
    return done


@pytest.mark.slow
def test_the_walk_through_runs_as_it_stands(tmp_path: Path) -> None:
    folders = nsight()
    done = walk(tmp_path, folders[0] if folders else None)
    work = tmp_path / "work"
    plan = json.loads((work / "plan.json").read_text())
    records = [
        json.loads(line)
        for f in sorted(work.glob("raw/chunks/*/records.jsonl"))
        for line in f.read_text().splitlines()
    ]
    measured = {r["entry_id"] for r in records if r["status"] == "ok"}
    assert measured == {e["id"] for e in plan["entries"]}  # every entry was measured
    provenance = json.loads((work / "cpu.json").read_text())
    assert provenance["operators"] == len(plan["entries"])
    collectors = {json.loads(f.read_text())["collector"] for f in work.glob("raw/chunks/*/chunk.json")}
    # Without one named here, gkest may still find an nsys of its own in the user's cache or NVIDIA's folders.
    assert collectors == {"nsys"} if folders else collectors in ({"nsys"}, {"none"})
    assert (work / "report" / "report.md").stat().st_size > 500
    estimate = done["gkest estimate demo/resnet50.onnx"].stdout
    assert "a CPU stands in for a GPU" in estimate
    assert re.search(r"resnet50 +CPU-", estimate)


def test_the_page_names_every_command() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for command in (
        "profile plan",
        "profile run",
        "profile build",
        "profile merge",
        "train",
        "estimate",
        "doctor",
    ):
        assert f"gkest {command}" in text
