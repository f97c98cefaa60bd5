"""How long Python keeps a module's arguments: what eager torch frees later than liveness says.

``Module.__call__`` holds its arguments in a tuple until ``forward`` returns, whatever ``forward`` rebinds. So a tensor
that goes into a module lives until that module returns: a block's input until the block is done, also where nothing
inside reads it any more. torch's TorchScript exporter writes the module's path into the node's name
(``/features/features.1/features.1.0/Conv``); other exporters' names say nothing, and nothing is held for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gkestimator.core.kernels import Step

ModulePath: TypeAlias = "tuple[str, ...]"


def module_path(name: str) -> ModulePath:
    """Return the modules around a node, outermost first, by the name that TorchScript's exporter gave it; else
    ``()``.

    In a merged graph the model's name and a slash stand before that name: the path begins where two slashes meet.
    """
    if name.startswith("/"):
        start = 0
    else:
        start = name.find("//") + 1
    if start or name.startswith("/"):
        return tuple(name[start:].split("/")[1:-1])
    return ()


def held_arguments(
    paths: Sequence[ModulePath], reads: Sequence[Sequence[str]], writes: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return return, for every step the storages that Python lets go of only after it.

    ``paths`` are the modules around each step, ``reads`` and ``writes`` its storages. A call of a module is a run
    of steps with its path. A storage born before the run in which it is read is an argument of that module; where
    several such runs are nested, the outermost keeps it longest.
    """
    held: list[list[str]] = [[] for _ in paths]
    if not any(paths):
        return held
    begins, ends = _runs(paths)
    born: dict[str, int] = {}
    until: dict[str, int] = {}
    for at, path in enumerate(paths):
        for storage in reads[at]:
            birth = born.setdefault(storage, -1)  # an input, or a weight (which is never freed)
            for depth in range(len(path)):
                if begins[depth][at] > birth:
                    end = ends[depth][at]
                    until[storage] = max(until.get(storage, -1), end)
                    break
        for storage in writes[at]:
            born.setdefault(storage, at)
    for storage, at in until.items():
        held[at].append(storage)
    return held


def held_remarks(steps: Sequence[Step]) -> list[str]:
    """Return a row's remark where a module, as names of steps say, holds what is made on the way longer than it is
    read."""
    last: dict[str, int] = {}
    for at, step in enumerate(steps):
        last.update(dict.fromkeys(step.reads, at))
        last.update(dict.fromkeys([storage for storage, _ in step.writes], at))
    made = {storage for step in steps for storage, _ in step.writes}
    for at, step in enumerate(steps):
        if module_path(step.name) and any(last[storage] < at for storage in made.intersection(step.holds)):
            return ["activations live as long as torch's modules hold them, which the nodes' names say"]
    return []


def _runs(paths: Sequence[ModulePath]) -> tuple[list[list[int]], list[list[int]]]:
    """Return by depth and step: the first and the last step of the call of the module at that depth around it."""
    begins = []
    ends = []
    for depth in range(max(map(len, paths))):
        first: list[int] = []
        last: list[int] = []
        begin = 0
        for at, path in enumerate(paths):
            if at and not _same_call(paths[at - 1], path, depth):
                last += [at - 1] * (at - begin)
                begin = at
            first.append(begin)
        last += [len(first) - 1] * (len(first) - begin)
        begins.append(first)
        ends.append(last)
    return begins, ends


def _same_call(left: ModulePath, right: ModulePath, depth: int) -> bool:
    """Return True when two neighbouring steps lie in one module at ``depth``."""
    if len(right) <= depth:
        return False
    return left[: depth + 1] == right[: depth + 1]
