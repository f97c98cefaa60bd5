"""Run gkest, or a Python file (``--python FILE``), with the packages that the pip of this folder was asked for, and without a network."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import runpy
import shlex
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def asked() -> list[Requirement]:
    """Return what every ``pip install`` so far named; ``.`` is gkestimator itself."""
    lines = Path(os.environ["FRESH_MACHINE"], "installed").read_text().splitlines()
    words = [word for line in lines for word in shlex.split(line)]
    names = [word for word in words if word != "install" and not word.startswith("-") and "/" not in word]
    return [Requirement(name.replace(".", "gkestimator", 1)) for name in names]


def closure(wanted: list[Requirement]) -> set[str]:
    """Return the distributions that ``wanted`` bring along, as far as they are installed here."""
    waiting, brought = list(wanted), set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = name, frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        brought.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            extras = requirement.extras or {""}
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(need)
    return brought


MACHINE = Path(os.environ["FRESH_MACHINE"])
OWN = (
    [str(MACHINE / "site"), *(MACHINE / "own").read_text().splitlines()] if (MACHINE / "own").exists() else []
)
sys.path = [folder for folder in sys.path if folder not in OWN]  # a child process is told its parent's
BROUGHT = closure(asked())
HIDDEN = {
    module
    for module, owners in importlib.metadata.packages_distributions().items()
    if not BROUGHT & {canonicalize_name(owner) for owner in owners}
}


class Finder(importlib.machinery.PathFinder):
    """Find modules as Python does, but for those of packages that nobody installed."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return the module's spec, None where it is hidden or missing."""
        if fullname.partition(".")[0] in HIDDEN:
            return None
        return super().find_spec(fullname, path, target)


def no_network(event: str, arguments: tuple[object, ...]) -> None:
    """Raise where a socket is connected to anything but a file of this machine."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        raise AssertionError(f"a command of the page asks the network: {arguments[1]}")


for module in [name for name in sys.modules if name.partition(".")[0] in HIDDEN]:
    del sys.modules[module]
sys.meta_path = [Finder if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
sys.addaudithook(no_network)

sys.path += OWN  # what the page itself wrote and installed

# A child process of gkest imports this file again, to be held to the same packages.
if __name__ == "__main__":
    if sys.argv[1:2] == ["--python"]:
        sys.argv = sys.argv[2:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        from gkestimator.cli import main

        main()
