"""docs/how-to/profiling.md, word by word: its commands without a GPU are run as they stand, with the real nsys where it is."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from walking import run_page  # tests/cli is on the path

for library in ("onnxruntime", "pyarrow", "sklearn", "xgboost", "lightgbm"):
    pytest.importorskip(library)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to/profiling.md"


SET_UP = """```sh
python3 -m venv .venv && .venv/bin/pip install -q -e '.[train-cpu,plot]' onnxruntime
. .venv/bin/activate
"""


def walk_through() -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(
        r"<!-- walk-through: begin -->\n```sh\n(.*?```\n)<!-- walk-through: end -->", text, re.DOTALL
    )
    assert found is not None
    return SET_UP + found[1]


def nsight() -> list[Path]:
    """Folders with an nsys, newest first: of GKEST_NSIGHT, else of PATH."""
    listed = [Path(p) / "bin" for p in os.environ.get("GKEST_NSIGHT", "").split(":") if p]
    on_path = shutil.which("nsys")
    return [p for p in listed if (p / "nsys").exists()] or ([Path(on_path).parent] if on_path else [])


@pytest.mark.slow
def test_the_walk_through_runs_as_it_stands(tmp_path: Path) -> None:
    folders = nsight()
    walk = run_page(walk_through(), tmp_path, tools=folders[:1])
    assert walk.status == 0, walk.printed[-1]
    work = walk.clone
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
    assert "a CPU stands in for a GPU" in walk.printed[-1]
    assert re.search(r"resnet50 +CPU-", walk.printed[-1])


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
