"""docs/glossary.md explains every term that an outsider cannot know: abbreviations, names in registries, columns, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import onnx
import pytest

from gkestimator.cli.group import gkest
from gkestimator.core.kernels import Family
from gkestimator.core.option_kinds import Word
from gkestimator.core.options import options_of
from gkestimator.estimation.request import EstimateRequest
from gkestimator.evaluation.options import EvaluateRequest
from gkestimator.exporting.registry import EXPORTERS
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.interference.registry import MODELS
from gkestimator.merging.options import MergeRequest
from gkestimator.placement.registry import POLICIES
from gkestimator.profiling.collectors.registry import COLLECTORS
from gkestimator.simulation.lengths.dispatch import SCHEMES
from gkestimator.simulation.run_options import SimulateOptions
from gkestimator.tables import COLOCATION, KERNEL_DATASET, KERNEL_ROWS, QUALITIES, REQUIREMENTS
from gkestimator.tables.kernel_rows import BOUNDS

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != GLOSSARY),
]
TABLES = (REQUIREMENTS, KERNEL_ROWS, KERNEL_DATASET, COLOCATION)
MOST_WORDS = 32  # an entry
# Formats and networks that readers of ONNX files have met; words of everyday speech in columns and headings.
KNOWN_CAPITALS, KNOWN_WORDS = (
    set(part.split("\n", 1)[1].split())
    for part in (Path(__file__).parent / "known_words.txt").read_text(encoding="utf-8").split("\n# ")[1:]
)


@cache
def glossary() -> dict[str, str]:
    """Return the meaning of each name of the glossary, in small letters."""
    names: dict[str, str] = {}
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| term |"):
            terms, meaning = (cell.strip() for cell in line.strip("| ").split(" | ", 1))
            for name in re.sub(r"\([^)]*\)", "", terms).split(","):
                names[name.strip().strip("`").strip().casefold()] = meaning
    return names


def lacking(terms: set[str], known: set[str]) -> list[str]:
    """Return those of ``terms`` that neither the glossary nor ``known`` has, in singular or plural."""
    names = {part for name in glossary() for part in (name, *re.split(r"[ -]", name))}
    names |= {word.casefold() for word in known}
    names |= {name.casefold() for name in names_of_things()}
    return sorted(t for t in terms if not {t.casefold(), t.casefold().removesuffix("s")} & names)


def prose(text: str) -> str:
    """Return ``text`` without code, comments and targets of links."""
    text = re.sub(
        r"```.*?```|``[^`]*``|<!--.*?-->|`[^`]*`|\]\([^)]*\)|https?://\S+", " ", text, flags=re.DOTALL
    )
    return text.replace("_", " ")


def capitals(text: str) -> set[str]:
    """Return the abbreviations in ``text``: words with two capitals, or a capital and a digit."""
    return set(re.findall(r"\b(?=\w*[A-Z])(?=\w*[A-Z0-9]\w*[A-Z]|\w*[A-Z]\w*[A-Z0-9])[A-Za-z]\w*\b", text))


@cache
def names_of_things() -> frozenset[str]:
    """Return the parts of GPUs' names and the operators of ONNX: they are explained where they are listed."""
    catalogue = gpu_catalogue()
    parts = {part for name in catalogue.names() for part in re.split(r"[-\s]", name)}
    aliases = {
        part for name in catalogue.names() for a in catalogue.sheet(name)[0].aliases for part in a.split()
    }
    operators = {schema.name for schema in onnx.defs.get_all_schemas()}
    return frozenset(parts | aliases | operators)


def commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    """Give ``command`` and all below it."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, click.Context(inner, info_name=name, parent=context))


ALL_COMMANDS = list(commands(gkest, click.Context(gkest, info_name="gkest")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_abbreviations_of_a_page_are_explained(page: Path) -> None:
    found = capitals(prose(page.read_text(encoding="utf-8")))
    assert lacking(found, KNOWN_CAPITALS) == []


def test_abbreviations_of_the_help_are_explained() -> None:
    found: set[str] = set()
    for command in ALL_COMMANDS:
        texts = [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
        shown = {
            word
            for p in command.params
            for word in re.findall(r"\w+", (p.metavar or p.human_readable_name).upper())
        }
        found |= {word for text in texts for word in capitals(text)} - shown
    assert lacking(found, KNOWN_CAPITALS) == []


def test_abbreviations_of_columns_are_explained() -> None:
    found = {word for table in TABLES for c in table.columns for word in capitals(prose(c.doc))}
    assert lacking(found, KNOWN_CAPITALS) == []


def test_names_in_registries_are_explained() -> None:
    found = {*POLICIES, *EXPORTERS, *RUNTIMES, *COLLECTORS, *MODELS, *SCHEMES, *QUALITIES, *BOUNDS, *Family}
    for record in (EstimateRequest, EvaluateRequest, MergeRequest, SimulateOptions):
        for option in options_of(record).values():
            kind = getattr(option.kind, "kind", option.kind)
            if isinstance(kind, Word):
                found |= set(kind.words)
    for command in ALL_COMMANDS:
        for parameter in command.params:
            if isinstance(parameter.type, click.Choice):
                found |= {str(choice) for choice in parameter.type.choices}
    assert lacking({str(name) for name in found}, KNOWN_WORDS) == []


def test_words_of_columns_are_explained() -> None:
    found = {word for table in TABLES for column in table.columns for word in column.name.split("_")}
    assert lacking(found, KNOWN_WORDS) == []


def test_headings_of_printed_tables_are_explained() -> None:
    """A heading is explained as a whole, or each of its words is; units and percent signs are no words."""
    headings: set[str] = set()
    for page in PAGES:
        for block in re.findall(r"```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            headings |= set(re.findall(r"(?<=  )?(\S+(?: \S+)*)", "  ".join(ruled(block.splitlines()))))
    for source in (ROOT / "gkestimator").rglob("*.py"):
        headings |= set(re.findall(r'TextColumn\(\s*heading="([^"]+)"', source.read_text(encoding="utf-8")))
    words = {
        word
        for heading in headings
        if heading.casefold() not in glossary()
        for word in re.findall(r"\b[A-Za-z][\w-]*", re.sub(r"\S*/\S*", "", heading))
    }
    assert lacking(words, KNOWN_WORDS | KNOWN_CAPITALS) == []


def test_words_of_a_report_are_explained() -> None:
    """Headings of one word, and abbreviations in its sentences."""
    files = [file for file in (ROOT / "gkestimator/reporting").rglob("*.js") if ".min." not in file.name]
    script = "\n".join(file.read_text(encoding="utf-8") for file in files)
    headings = set(re.findall(r'(?:section\(\w+, |^\s*\[)"([A-Za-z-]+)"[,)]', script, re.MULTILINE))
    assert {"Slack", "Roofline", "policy"} <= headings
    sentences = " ".join(re.findall(r'"([A-Z][^"\n;={}]* [^"\n;={}]*)"', script))
    assert lacking(headings | capitals(sentences), KNOWN_WORDS | KNOWN_CAPITALS) == []


def ruled(lines: list[str]) -> list[str]:
    """Return the lines that stand above a rule of dashes."""
    return [a for a, b in pairwise(lines) if re.fullmatch(r"-+(?:  -+)+", b.strip())]


def test_the_glossary_is_alphabetical_short_and_says_nothing_twice() -> None:
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    order = [
        re.sub(r"[^a-z0-9 ]", "", line.split(" | ")[0].casefold().replace("-", " ")).strip() for line in lines
    ]
    assert order == sorted(order)
    assert [line for line in lines if len(line.split(" | ", 1)[1].split()) > MOST_WORDS] == []
    names = [n.strip("`| ").casefold() for line in lines for n in line.split(" | ")[0].split(",")]
    assert sorted(names) == sorted(set(names))


def test_every_term_of_the_glossary_is_used() -> None:
    sources = [file for room in ("gkestimator", "profiling", "cli") for file in (ROOT / room).rglob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in (*PAGES, *sources)]
    text = " ".join(" ".join(texts).casefold().split())
    assert [name for name in glossary() if name not in text] == []


def test_a_term_that_nobody_explains_is_found() -> None:
    found = capitals(prose("The ZXQ9 of a model, its `SLO_MS` and the QZX-law; see [it](PAGE_ABC.md)."))
    assert lacking(found, KNOWN_CAPITALS) == ["QZX", "ZXQ9"]
    assert lacking({"nhwc", "w3a16"}, KNOWN_WORDS) == ["w3a16"]
