"""Say what a bundle's answers for a GPU rest on: the board itself, another board of its chip, or other chips."""

from __future__ import annotations

import textwrap

from gkestimator.bundles.bundle import Bundle
from gkestimator.bundles.models import BundleModel
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec

BOARD = "this board"
CHIP = "another board of its chip"
OTHER = "other chips"
BORROWED = "kernels of another family"
GROUPS = (
    ("fp32 products", "linear", "fp32"),
    ("fp32 convolutions", "conv", "fp32"),
    ("fp32 elementwise work", "elementwise", "fp32"),
    ("fp16 products", "linear", "fp16"),
    ("fp16 convolutions", "conv", "fp16"),
    ("fp16 elementwise work", "elementwise", "fp16"),
    ("fp16 attention", "attention", "fp16"),
)
"""What people ask about, and the family and precision of kernels that answers for it."""

_WIDTHS = {
    BOARD: "narrowest",
    CHIP: "wider where its memory differs",
    OTHER: "wider",
    BORROWED: "widest",
}
_LINE = 100


@frozen
class Basis:
    """Hold what one group of kernels rests on: one of ``_WIDTHS``, and the boards that were measured."""

    group: str
    kind: str
    boards: tuple[str, ...]


def basis_of(bundle: Bundle, gpu: GpuSpec, catalogue: GpuCatalogue) -> tuple[Basis, ...]:
    """Return what the answers of each of ``GROUPS`` rest on; a group that no regressor covers is left out."""
    trained = _trained_boards(bundle)
    bases = []
    for group, family, precision in GROUPS:
        model = bundle.covering(family, precision, gpu)
        if model is None:
            continue
        boards = trained.get(model.name, ())
        if family not in {trained_family for trained_family, _ in model.trains}:
            bases.append(Basis(group=group, kind=BORROWED, boards=()))
        elif gpu.name in boards:
            bases.append(Basis(group=group, kind=BOARD, boards=(gpu.name,)))
        elif model.scope == "seen" and model.knows_chip(gpu):
            bases.append(Basis(group=group, kind=CHIP, boards=_siblings(model, gpu, boards, catalogue)))
        else:
            bases.append(Basis(group=group, kind=OTHER, boards=boards))
    return tuple(bases)


def basis_text(bases: tuple[Basis, ...]) -> str:
    """Return the same in lines for people, one for each kind."""
    lines = []
    for kind in _WIDTHS:
        groups = [basis.group for basis in bases if basis.kind == kind]
        if not groups:
            continue
        said = f"{kind}, so intervals are {_WIDTHS[kind]}"
        if kind == CHIP:
            boards = {board: None for basis in bases if basis.kind == CHIP for board in basis.boards}
            said = f"{kind} ({', '.join(boards)}), so intervals are {_WIDTHS[kind]}"
        text = f"Estimates of {', '.join(groups)}: learned on {said}."
        lines += textwrap.wrap(text, width=_LINE, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def _trained_boards(bundle: Bundle) -> dict[str, tuple[str, ...]]:
    """Return the boards that each regressor's card names."""
    boards = {}
    models = bundle.card.get("models", [])
    if isinstance(models, list):
        for entry in models:
            boards[str(entry.get("name"))] = tuple(entry.get("per_gpu_pct", {}))
    return boards


def _siblings(
    model: BundleModel, gpu: GpuSpec, boards: tuple[str, ...], catalogue: GpuCatalogue
) -> tuple[str, ...]:
    """Return those of ``boards`` that have the chip of ``gpu``, as ``model`` counts chips."""
    siblings = []
    for name in boards:
        board = catalogue.spec(name)
        alike = board.compute_capability == gpu.compute_capability and model.knows_chip(board)
        if alike and abs(board.sms / gpu.sms - 1) <= 0.1:
            siblings.append(name)
    return tuple(siblings)
