"""The tutorials, the gallery and the notebook, word by word: they run, print what they show and draw their pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from walking import BLOCK, is_current, refresh_module  # tests/cli is on the path

pytest.importorskip("packaging")
for library in ("matplotlib", "onnxruntime", "pyarrow", "sklearn", "xgboost", "lightgbm"):
    pytest.importorskip(library)
ROOT = Path(__file__).parents[2]
PAGES = (*sorted((ROOT / "docs" / "tutorials").glob("*.md")), ROOT / "docs" / "gallery.md")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_as_it_stands(page: Path, tmp_path: Path) -> None:
    module = refresh_module()
    current, walk = module.walked(page, tmp_path)
    text = page.read_text(encoding="utf-8")
    is_current(text, current)
    pictures = module.SHOWN.findall(text)
    assert pictures
    for name in pictures:
        assert (walk.clone / "try" / name).stat().st_size > 5_000
        assert 5_000 < (ROOT / "docs" / "pictures" / name).stat().st_size < 160_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_the_set_up(page: Path) -> None:
    first = next(BLOCK.finditer(page.read_text(encoding="utf-8")))["commands"]
    assert first.startswith("python3 -m venv .venv") and "gkest demo --all try" in first


def printed(notebook: str) -> str:
    """Return the text of every output of ``notebook``, a picture's class for a picture."""
    outputs = [output for cell in json.loads(notebook)["cells"] for output in cell.get("outputs", ())]
    texts = [output.get("text") or output["data"]["text/plain"] for output in outputs]
    return "\n".join("".join(text) for text in texts)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_prints(tmp_path: Path) -> None:
    """`.ci/run` runs this with the extra `dev`, which has nbclient."""
    pytest.importorskip("nbclient")
    module = refresh_module()
    kept = module.NOTEBOOK.read_text(encoding="utf-8")
    is_current(printed(kept), printed(module.executed(module.NOTEBOOK, tmp_path)))
    assert "image/png" in kept and len(kept) < 150_000
