"""Run the commands of the worked examples in README.md and in pages of docs/ and put their output back into them:
``python docs/refresh_readme.py``.

A block of output stands behind ``<!-- output: gkest ... -->``, or behind the commands that print it and
``<!-- output -->`` (tests/cli/walking.py). ``--check`` changes nothing and exits 1 when something is not current to the
digit; otherwise the README's picture is drawn anew, too, and those that the commands of a tutorial or of the gallery
write into ``try/``. ``python docs/refresh_readme.py PAGE ...``: these pages alone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "tests" / "cli"))
from walking import BLOCK, Walk, run_page, shown  # noqa: E402

README = DOCS.parent / "README.md"
EVALUATE = DOCS / "how-to" / "evaluate.md"
MERGING = DOCS / "how-to" / "merging.md"
GPUS = DOCS / "reference" / "gpus.md"
FIRST_HOUR = DOCS / "how-to" / "first-hour.md"
TUTORIALS = (*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "gallery.md")
NOTEBOOK = DOCS / "tutorials" / "first-look.ipynb"
SHOWN = re.compile(r"\]\((?:\.\./)?pictures/([^)]+)\)")
PICTURE = DOCS / "pictures" / "resnet50.png"
PICTURE_COMMAND = "demo --gpu T4,L4,V100,H100 --batch-size 1,2,4,8,16,32,64 --plot"
NAMED = re.compile(
    r"(<!-- output: gkest (?P<arguments>[^\n]*?) -->\n```text\n)(?P<output>.*?)(```\n)", re.DOTALL
)
PROGRAM = [sys.executable, "-P", "-c", "from gkestimator.cli import main; main()"]


def output_of(arguments: str, folder: Path | None = None) -> str:
    """Return what ``gkest`` with ``arguments`` prints in ``folder``: stdout, then stderr, as a terminal shows it."""
    command = [*PROGRAM, *shlex.split(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=folder)
    if done.returncode != 0:
        raise SystemExit(f"gkest {arguments}: exit status {done.returncode}: {done.stderr}")
    return done.stdout + ("\n" + done.stderr if done.stderr else "")


def walked(page: Path, folder: Path) -> tuple[str, Walk]:
    """Follow ``page`` below ``folder`` as a reader on a fresh machine does; return it with what its commands print.

    The environment of the first hour is that of the README's first command. A command that fails ends the program.
    """
    text = page.read_text(encoding="utf-8")
    before = BLOCK.search(README.read_text(encoding="utf-8"))[0] if page == FIRST_HOUR else ""
    walk = run_page(before + text, folder)
    if walk.status != 0:
        raise SystemExit(f"{page}: exit status {walk.status}: {walk.printed[-1]}")
    printed = iter(walk.printed)

    def current(block: re.Match[str]) -> str:
        said = next(printed)
        if block["output"] is None:
            return block[0]
        head = block[0][: block.start("output") - block.start()]
        return f"{head}{shown(block, said)}```\n"

    return BLOCK.sub(current, before + text).removeprefix(before), walk


def executed(notebook: Path, folder: Path) -> str:
    """Return ``notebook`` after all its cells were run in ``folder``. Raises CellExecutionError where one fails."""
    import nbclient
    import nbformat

    read = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(
        read, timeout=200, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    )
    read.metadata.pop("language_info", None)  # names the version of the Python that ran it
    return nbformat.writes(read) + "\n"


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
    """Return ``text`` with every block's output replaced by the current one."""
    return NAMED.sub(lambda m: m[1] + output_of(m["arguments"], folder) + m[4], text)


def main() -> int:
    """Refresh or check the pages and return the exit status."""
    stale = 0
    checking = "--check" in sys.argv[1:]
    asked = [Path(name).resolve() for name in sys.argv[1:] if name != "--check"]
    prepared = {GPUS: None, EVALUATE: evaluate_folder, MERGING: merging_folder}
    for page in asked or (README, FIRST_HOUR, *TUTORIALS, *prepared, NOTEBOOK):
        with tempfile.TemporaryDirectory() as scratch:
            old = page.read_text(encoding="utf-8")
            if page == NOTEBOOK:
                new = executed(page, Path(scratch))
            elif page in prepared:
                prepare = prepared[page]
                new = refreshed(old, prepare and prepare(Path(scratch)))
            else:
                new, walk = walked(page, Path(scratch))
            for name in SHOWN.findall(old) if page in TUTORIALS and not checking else ():
                shutil.copy(walk.clone / "try" / name, DOCS / "pictures" / name)
        stale |= int(old != new)
        if not checking:
            page.write_text(new, encoding="utf-8")
    if not checking and not asked:
        output_of(f"{PICTURE_COMMAND} {shlex.quote(str(PICTURE))}")
    return stale if checking else 0


if __name__ == "__main__":
    sys.exit(main())
