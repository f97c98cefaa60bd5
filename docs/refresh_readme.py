"""Run the commands of README.md's worked example and put their output back into it: ``python docs/refresh_readme.py``.

Each block stands between ``<!-- output: gkest ... -->`` and the next fence's end. The table between
``<!-- summary -->`` and ``<!-- /summary -->`` is copied from docs/accuracy.md (``python -m benchmarks.accuracy``).
``--check`` changes nothing and exits 1 when something is not current to the digit.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
ACCURACY = Path(__file__).parent / "accuracy.md"
SUMMARY = re.compile(r"<!-- summary -->\n.*?<!-- /summary -->", re.DOTALL)
BLOCK = re.compile(
    r"(<!-- output: gkest (?P<arguments>[^\n]*?) -->\n```text\n)(?P<output>.*?)(```\n)", re.DOTALL
)


def output_of(arguments: str) -> str:
    """What ``gkest`` with ``arguments`` prints: stdout, then stderr, as a reader of a terminal sees it."""
    program = [sys.executable, "-c", "from gkestimator.cli import main; main()"]
    command = [*program, *shlex.split(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"gkest {arguments}: exit status {done.returncode}: {done.stderr}")
    return done.stdout + ("\n" + done.stderr if done.stderr else "")


def refreshed(text: str) -> str:
    """``text`` with every block's output and the accuracy table replaced by the current ones."""
    return with_accuracy(BLOCK.sub(lambda m: m[1] + output_of(m["arguments"]) + m[4], text))


def with_accuracy(text: str) -> str:
    """``text`` with the table of docs/accuracy.md in place of its own."""
    found = SUMMARY.search(ACCURACY.read_text(encoding="utf-8"))
    if found is None or not SUMMARY.search(text):
        raise SystemExit("docs/accuracy.md or README.md has no <!-- summary --> table")
    return SUMMARY.sub(lambda _: found[0], text)


def main() -> int:
    """Refresh or check README.md; the exit status."""
    old = README.read_text(encoding="utf-8")
    new = refreshed(old)
    if "--check" in sys.argv[1:]:
        return int(old != new)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
