"""docs/explanation/simulation.md, word by word: its commands are run as they stand; the report's page names every field."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_models import encoder

from gkestimator.documents.simulation import SimulationReport, read_simulation
from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.onnx_io.demo_models import write_mobilenet_v2

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation/simulation.md").read_text(encoding="utf-8")
REPORT = (ROOT / "docs" / "reference/simulation-report.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"


def commands() -> list[str]:
    found = re.search(
        r"<!-- walk-through: begin -->\n```sh\n(.*?)```\n<!-- walk-through: end -->", PAGE, re.DOTALL
    )
    assert found is not None
    return found[1].strip().splitlines()


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's commands were run."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("walk")
    (folder / "models").mkdir()
    write_resnet50(folder / "models")
    write_mobilenet_v2(folder / "models")
    encoder(folder / "models").rename(folder / "models" / "bert.onnx")
    for name in ("workload.yaml", "cluster.yaml"):
        shutil.copy(EXAMPLES / "scheduling" / name, folder)
    shutil.copy(EXAMPLES / "network.toml", folder)
    code = "from gkestimator.cli import run; import sys; sys.exit(run(sys.argv[1:]))"
    for command in commands():
        gkest, *arguments = command.split()
        assert gkest == "gkest"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            cwd=folder, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        (folder / "said").write_text(done.stderr)
    return folder


@pytest.mark.slow
def test_what_the_page_writes(walked: Path) -> None:
    assert (walked / "served.png").read_bytes().startswith(b"\x89PNG")
    bursts = read_simulation(walked / "bursts.json")
    assert bursts.settings.arrivals == "mmpp (bursts 3, 0.1, 2)" and bursts.settings.network == "network.toml"
    assert all(
        m.network.mean_ms and m.network.mean_ms > 1.0 for m in bursts.models
    )  # half a millisecond each way
    more = (walked / "more.csv").read_text().splitlines()
    assert len(more) == 4
    asked = more[0].split(",").index("asked_rps")
    assert {line.split(",")[0]: float(line.split(",")[asked]) for line in more[1:]} == {
        "resnet50": pytest.approx(1170), "mobilenet_v2": pytest.approx(1560), "bert": pytest.approx(52)
    }  # fmt: skip
    assert "promised 2,140" in (walked / "said").read_text()
    with (walked / "requests.csv").open() as stream:
        header = next(stream).strip().split(",")
        assert sum(1 for _ in stream) == pytest.approx(60 * 2782, rel=0.01)
    for column in header:
        assert f"`{column}`" in REPORT


def test_the_example_of_a_network_is_the_page_s() -> None:
    shown = re.search(r"<!-- file: network.toml -->\n```toml\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert tomllib.loads(shown[1]) == tomllib.loads((EXAMPLES / "network.toml").read_text())


def fields(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for key, value in found.items():
            yield key
            yield from fields(value)
    elif isinstance(found, list) and found:
        yield from fields(found[0])


@pytest.mark.slow
def test_the_page_names_every_field(walked: Path) -> None:
    report = json.loads((walked / "bursts.json").read_text())
    assert set(report) == {"schema_version", *SimulationReport.__slots__}
    for field in set(fields(report)) - {"schema_version"}:
        assert re.search(rf"[`.]{field}(\[\])?[`.]", REPORT), field


@pytest.mark.slow
def test_the_program_of_the_page_runs(walked: Path) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    done = subprocess.run(
        [sys.executable, "-P", "-c", code[1]],
        cwd=walked,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    goodput, queue = (float(word) for word in done.stdout.split())
    assert goodput > 1900 and queue > 0
