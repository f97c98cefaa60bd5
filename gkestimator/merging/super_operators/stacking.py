"""Several activations one above the other along axis 0, and results taken apart again."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.merging.super_operators.form import Sheet


def unstack(sheet: Sheet, value: str, sources: Sequence[str], counts: Sequence[int | None]) -> list[str]:
    """``value`` taken apart along axis 0, one part for each of the stacked ``sources``.

    ``counts``: their sizes along axis 0, None where they are known at run time alone; they are read from the
    sources then.
    """
    known = [count for count in counts if count is not None]
    if len(known) == len(counts):
        return sheet.parted(value, known, 0, "parts", len(counts))
    sizes = [
        sheet.whole_numbers([count]) if count is not None else sheet.leading(source, 1, "size")
        for source, count in zip(sources, counts, strict=True)
    ]
    return sheet.parted(value, sheet.joined(sizes, 0, "sizes"), 0, "parts", len(counts))
