"""What went wrong with single entries, as few lines as tell it."""

from __future__ import annotations

from collections.abc import Iterable


class Problems:
    """Lines for people: what befell many entries of one place alike is one line with a count and an example."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._groups: dict[tuple[str, str], list[str]] = {}

    def line(self, text: str) -> None:
        """Something that happened once."""
        self._lines.append(text)

    def lines(self, texts: Iterable[str]) -> None:
        """Several of them."""
        self._lines.extend(texts)

    def of_entry(self, where: str, what: str, entry_id: str, detail: str = "") -> None:
        """``what`` befell an entry at ``where``; ``detail`` is said of the first."""
        self._groups.setdefault((where, what), []).append(f"{entry_id}: {detail}" if detail else entry_id)

    def all(self) -> tuple[str, ...]:
        """The lines in the order in which they came."""
        grouped = [
            f"{where}: {what}: {found[0]}"
            if len(found) == 1
            else f"{where}: {what}: {len(found)} times, first {found[0]}"
            for (where, what), found in self._groups.items()
        ]
        return (*self._lines, *grouped)

    def __len__(self) -> int:
        return len(self._lines) + len(self._groups)
