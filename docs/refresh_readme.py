"""Run the commands of the worked examples in README.md and in pages of docs/ and put their output back into them:
``python docs/refresh_readme.py``.

Each block stands between ``<!-- output: gkest ... -->`` and the next fence's end.
``--check`` changes nothing and exits 1 when something is not current to the digit.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
EVALUATE = DOCS / "how-to" / "evaluate.md"
MERGING = DOCS / "how-to" / "merging.md"
GPUS = DOCS / "reference" / "gpus.md"
BLOCK = re.compile(
    r"(<!-- output: gkest (?P<arguments>[^\n]*?) -->\n```text\n)(?P<output>.*?)(```\n)", re.DOTALL
)


def output_of(arguments: str, folder: Path | None = None) -> str:
    """Return what ``gkest`` with ``arguments`` prints in ``folder``: stdout, then stderr, as a terminal shows it."""
    program = [sys.executable, "-c", "from gkestimator.cli import main; main()"]
    command = [*program, *shlex.split(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=folder)
    if done.returncode != 0:
        raise SystemExit(f"gkest {arguments}: exit status {done.returncode}: {done.stderr}")
    return done.stdout + ("\n" + done.stderr if done.stderr else "")


def evaluate_folder(folder: Path) -> Path:
    """Write what docs/how-to/evaluate.md works on into ``folder``: measurements, and three models in ``models``."""
    import onnx

    from gkestimator.onnx_io.demo import write_resnet50

    sys.path.append(str(DOCS.parent / "tests" / "golden"))
    from golden_models import mobilenet

    shutil.copy(DOCS / "how-to" / "evaluate" / "measured.csv", folder)
    models = folder / "models"
    write_resnet50(models)
    mobilenet(models)
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    shutil.copy(light / "light_vgg19.onnx", models / "vgg19.onnx")
    return folder


def merging_folder(folder: Path) -> Path:
    """Write what docs/how-to/merging.md works on into ``folder``: two ResNets, four layers of one drawn anew."""
    sys.path.append(str(DOCS.parent / "tests" / "merging"))
    import families

    birds = families.resnet_like(width=32, blocks=(2, 2, 2, 2), image=112, classes=100)
    families.saved(birds, folder / "birds.onnx")
    families.saved(families.sibling(birds, last=4), folder / "cars.onnx")
    return folder


def refreshed(text: str, folder: Path | None = None) -> str:
    """Return ``text`` with every block's output replaced by the current one."""
    return BLOCK.sub(lambda m: m[1] + output_of(m["arguments"], folder) + m[4], text)


def main() -> int:
    """Refresh or check the pages and return the exit status."""
    stale = 0
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as merging:
        pages = (
            (README, None),
            (GPUS, None),
            (EVALUATE, evaluate_folder(Path(scratch))),
            (MERGING, merging_folder(Path(merging))),
        )
        for page, folder in pages:
            old = page.read_text(encoding="utf-8")
            new = refreshed(old, folder)
            stale |= int(old != new)
            if "--check" not in sys.argv[1:]:
                page.write_text(new, encoding="utf-8")
    return stale if "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
