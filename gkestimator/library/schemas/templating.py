"""Read the commented templates: what ``gkest init`` writes, and the words that explain fields in the schemas."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files

from gkestimator.core.records import NamedValues, Names
from gkestimator.documents.workload import quick_workload

TEMPLATES = {
    "workload": "workload.yaml",
    "cluster": "cluster.yaml",
    "gpu": "gpu.toml",
    "comparison": "comparison.yaml",
}
"""Files by kind of document."""
# Prose begins with a capital letter, a commented field with its own name.
_COMMENTED = re.compile(r"^# ( *(?:- )?[a-z_0-9]+(?::| =)(?: .*)?)$", re.MULTILINE)
_FIELD = re.compile(r"( *)(- )?([a-z_0-9]+)(?::| =)(?: (?! #).*?)?(?:  # (.*))?")


def template_text(kind: str) -> str:
    """Return the template of a ``kind`` of document, a key of :data:`TEMPLATES`."""
    return (files("gkestimator.library.schemas.templates") / TEMPLATES[kind]).read_text(encoding="utf-8")


def whole_text(kind: str) -> str:
    """Return the template with its commented fields in force, alternatives beside each other."""
    return _COMMENTED.sub(r"\1", template_text(kind))


def parsed_template(kind: str, text: str) -> NamedValues:
    """Return the document that ``text``, the template of ``kind`` or its whole text, says."""
    if TEMPLATES[kind].endswith(".toml"):
        return tomllib.loads(text)
    import yaml

    document: NamedValues = yaml.safe_load(text)
    return document


def field_words(kind: str) -> dict[Names, str]:
    """Return the explanation of each field by the names on the way to it; lists add no name."""
    words: dict[Names, str] = {}
    stack: list[tuple[int, str]] = []
    for line in whole_text(kind).splitlines():
        match = _FIELD.fullmatch(line)
        if match is None:
            continue
        indent = len(match[1]) + len(match[2] or "")
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, match[3]))
        if match[4]:
            words.setdefault(tuple(name for _, name in stack), match[4])
    return words


def quick_text(texts: Sequence[str]) -> str:
    """Return the workload file of ``texts`` such as ``resnet50:900rps@100ms``. Raises what quick_workload does."""
    words = field_words("workload")
    lines = [
        "# Read by `gkest schedule --workload FILE`; `gkest init workload` explains every field.",
        "models:",
    ]
    for load in quick_workload(texts).models:
        begin = "- "
        for name, value in (
            ("name", load.name),
            ("rate_rps", f"{load.rate_rps:g}"),
            ("slo_ms", f"{load.slo_ms:g}"),
        ):
            lines.append(f"{begin}{name}: {value}  # {words['models', name]}")
            begin = "  "
    return "\n".join(lines) + "\n"
