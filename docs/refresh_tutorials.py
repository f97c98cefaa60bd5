"""Run the tutorials, the gallery and the notebook, and put what they print and draw into them:
``python docs/refresh_tutorials.py [PAGE ...]``.

A page's commands run as its reader would run them (tests/cli/walking.py). Every picture that a page shows from docs/pictures is one
that its commands wrote into ``try/``.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = (*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "gallery.md")
PICTURE = re.compile(r"\]\((?:\.\./)?pictures/([^)]+)\)")


def refresh(page: Path) -> None:
    """Put the current outputs and pictures of ``page`` into it. Raises AssertionError where a command of it fails."""
    sys.path.append(str(DOCS.parent / "tests" / "cli"))
    from walking import BLOCK, run_page, shown

    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        walk = run_page(text, Path(scratch))
        assert walk.status == 0, f"{page}: {walk.printed[-1]}"
        printed = iter(walk.printed)

        def current(block: re.Match[str]) -> str:
            said = next(printed)
            if block["output"] is None:
                return block[0]
            start, end = (place - block.start() for place in block.span("output"))
            return block[0][:start] + shown(block, said) + block[0][end:]

        page.write_text(BLOCK.sub(current, text), encoding="utf-8")
        (DOCS / "pictures").mkdir(exist_ok=True)
        for name in PICTURE.findall(text):
            shutil.copy(walk.clone / "try" / name, DOCS / "pictures" / name)


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or PAGES:
        refresh(path)
