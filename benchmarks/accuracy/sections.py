"""List the experiments that stand beside the first ones: each one file, one entry, one page of its own.

A section's module says what it runs (``jobs``), which bars it answers (``lines``) and its page's text (``page``). The command
runs its jobs with the group of its name, docs/accuracy.md gets its lines and a link, docs/accuracy/NAME.md its text.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

from .lines import Expected, Line
from .workspace import Workspace

SECTION_NAMES: tuple[str, ...] = (
    "decode",
    "eighth",
    "hosts",
    "llm_steps",
    "machines",
    "ort_memory",
    "ort_models",
    "power",
    "rnn",
    "timm3090",
    "trt_memory",
    "widths",
)
"""Module names in this folder, in the order of their pages."""

Job = Callable[[Workspace], None]


def nothing_expected(space: Workspace) -> Iterator[Expected]:
    """Yield no row."""
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Hold one section.

    ``title``: what its page is about. ``jobs``: experiments by name (each begins with the section's name), run once per
    recipe and kept. ``lines(space)`` yields its bars; ``page(space)`` returns its page below the title, Markdown lines, or
    None where nothing has been run. ``expected(space)`` yields its rows of the first page's table, what a buyer looks at.
    """

    title: str
    jobs: Mapping[str, Job]
    lines: Callable[[Workspace], Iterator[Line]]
    page: Callable[[Workspace], list[str] | None]
    expected: Callable[[Workspace], Iterator[Expected]] = nothing_expected


def section(name: str) -> Section:
    """Return the ``SECTION`` of module ``name``."""
    module: ModuleType = importlib.import_module(f"benchmarks.accuracy.{name}")
    chosen: Section = module.SECTION
    return chosen


def section_jobs(chosen: list[str]) -> dict[str, Job]:
    """Return the jobs of the sections named in ``chosen``, by name."""
    jobs: dict[str, Job] = {}
    for name in SECTION_NAMES:
        if name in chosen:
            jobs.update(section(name).jobs)
    return jobs


def section_lines(space: Workspace) -> Iterator[Line]:
    """Yield the bars of every section, in order."""
    for name in SECTION_NAMES:
        yield from section(name).lines(space)


def section_expected(space: Workspace) -> Iterator[Expected]:
    """Yield every section's rows of the first page, in order."""
    for name in SECTION_NAMES:
        yield from section(name).expected(space)
