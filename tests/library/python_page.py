"""Run a page of Python blocks: ``python tests/library/python_page.py`` puts today's output back into the library's page.

A ``text`` fence that follows a ``python`` fence holds what the block prints. Blocks share one namespace.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

from gkestimator.cli import run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "library.md"
FENCE = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def outputs(text: str) -> list[tuple[re.Match[str], str]]:
    """Return every block of ``text`` with what it prints when all are run here, in order."""
    names: dict[str, Any] = {"__name__": "__page__"}
    printed = []
    for block in FENCE.finditer(text):
        language, code, _ = block.groups()
        stream = io.StringIO()
        if language == "sh":
            for line in code.splitlines():
                command, *arguments = shlex.split(line)
                assert command == "gkest" and run(arguments) == 0, line
        else:
            with contextlib.redirect_stdout(stream):
                exec(compile(code, f"a block of {PAGE.name}", "exec"), names)
        printed.append((block, stream.getvalue()))
    return printed


def refreshed(text: str) -> str:
    """Return ``text`` with what its blocks print now."""
    for block, printed in reversed(outputs(text)):
        if block[3] is not None:
            text = text[: block.start(3)] + printed + text[block.end(3) :]
    return text


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        new = refreshed(old)
    PAGE.write_text(new, encoding="utf-8")
