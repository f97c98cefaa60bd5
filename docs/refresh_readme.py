"""Run the commands of the worked examples in README.md and in pages of docs/ and put their output back into them:
``python docs/refresh_readme.py``.

A block of output stands behind ``<!-- output: gkest ... -->``, or behind the commands that print it and
``<!-- output -->``; a filter of the shell, ``<!-- output | tail -n 2 -->``, shortens it. ``--check`` changes nothing
and exits 1 when something is not current to the digit. Otherwise the README's picture is drawn anew, too.
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
FIRST_HOUR = DOCS / "how-to" / "first-hour.md"
PICTURE = DOCS / "pictures" / "resnet50.png"
PICTURE_COMMAND = "demo --gpu T4,L4,V100,H100 --batch-size 1,2,4,8,16,32,64 --plot"
BLOCK = re.compile(
    r"(<!-- output: gkest (?P<arguments>[^\n]*?) -->\n```text\n)(?P<output>.*?)(```\n)", re.DOTALL
)
STEP = re.compile(
    r"(```sh\n(?P<commands>(?:(?!```).)*)```\n\n<!-- output(?: \|(?P<filter>[^\n]*))? -->\n```text\n)"
    r"(?P<output>.*?)(```\n)",
    re.DOTALL,
)
PROGRAM = [sys.executable, "-P", "-c", "from gkestimator.cli import main; main()"]


def output_of(arguments: str, folder: Path | None = None) -> str:
    """Return what ``gkest`` with ``arguments`` prints in ``folder``: stdout, then stderr, as a terminal shows it."""
    command = [*PROGRAM, *shlex.split(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=folder)
    if done.returncode != 0:
        raise SystemExit(f"gkest {arguments}: exit status {done.returncode}: {done.stderr}")
    return done.stdout + ("\n" + done.stderr if done.stderr else "")


def printed_by(step: re.Match[str], folder: Path) -> str:
    """Return what the commands of a :data:`STEP` print in ``folder``, cut by its filter; empty output is an error."""
    gkest = f'gkest() {{ {shlex.join(PROGRAM)} "$@"; }}'
    script = f"set -e\n{gkest}\n{step['commands']}"
    done = subprocess.run(
        ["bash", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300, cwd=folder,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{step['commands']}: exit status {done.returncode}: {done.stdout}")
    cut = subprocess.run(
        ["bash", "-c", step["filter"] or "cat"],
        input=done.stdout,
        capture_output=True,
        text=True,
        check=False,
    )
    if not cut.stdout:
        raise SystemExit(f"{step['commands']}: nothing is left by {step['filter']} of: {done.stdout}")
    return cut.stdout


def with_demo(folder: Path) -> Path:
    """Write what README.md and docs/how-to/first-hour.md work on into ``folder``."""
    output_of("demo --all try", folder)
    return folder


def evaluate_folder(folder: Path) -> Path:
    """Write what docs/how-to/evaluate.md works on into ``folder``: measurements, and three models in ``models``."""
    import onnx

    from gkestimator.onnx_io.demo import write_resnet50
    from gkestimator.onnx_io.demo_models import write_mobilenet_v2

    shutil.copy(DOCS / "how-to" / "evaluate" / "measured.csv", folder)
    models = folder / "models"
    write_resnet50(models)
    write_mobilenet_v2(models)
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
    """Return ``text`` with every block's output replaced by the current one; steps run in their order."""
    text = BLOCK.sub(lambda m: m[1] + output_of(m["arguments"], folder) + m[4], text)
    if folder is None:
        return text
    return STEP.sub(lambda m: m[1] + printed_by(m, folder) + m[5], text)


def main() -> int:
    """Refresh or check the pages and return the exit status."""
    stale = 0
    pages = {
        README: with_demo,
        FIRST_HOUR: with_demo,
        GPUS: None,
        EVALUATE: evaluate_folder,
        MERGING: merging_folder,
    }
    for page, prepare in pages.items():
        with tempfile.TemporaryDirectory() as scratch:
            old = page.read_text(encoding="utf-8")
            new = refreshed(old, prepare and prepare(Path(scratch)))
        stale |= int(old != new)
        if "--check" not in sys.argv[1:]:
            page.write_text(new, encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return stale
    output_of(f"{PICTURE_COMMAND} {shlex.quote(str(PICTURE))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
