"""The policies by name, and their options as they come from a command line. One line for each of ours; third
parties by entry point (group ``gkestimator.policies``), loaded only when named."""

from __future__ import annotations

import ast
import importlib
import math
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError, UsageError, one_line
from gkestimator.core.naming import nearest_name
from gkestimator.placement.policy import Policy
from gkestimator.placement.problem import Names, Words

ENTRY_POINT_GROUP = "gkestimator.policies"
# name: module of gkestimator.placement and class
POLICIES: Mapping[str, tuple[str, str]] = {
    "gkest": ("gkest.policy", "GkestPolicy"),
    "usher": ("papers.usher.policy", "UsherPolicy"),
    "milp": ("papers.milp", "MilpPolicy"),
    "gpulet": ("papers.gpulet.policy", "GpuletPolicy"),
    "gpulet-ideal": ("papers.gpulet.ideal", "GpuletIdealPolicy"),
    "nexus": ("papers.nexus", "NexusPolicy"),
    "selftuning": ("papers.selftuning", "SelfTuningPolicy"),
    "igniter": ("papers.igniter.policy", "IgniterPolicy"),
    "exclusive": ("papers.exclusive", "ExclusivePolicy"),
}


_MAX_TEXT = 200
_TRUTH = {"true": True, "false": False}


def policy_names() -> Names:
    """Return the names of ours in order, then third parties' as installed; nothing is loaded."""
    others = {point.name for point in _third_parties()}
    return (*POLICIES, *sorted(others - set(POLICIES)))


def _third_parties() -> Iterable[EntryPoint]:
    return entry_points(group=ENTRY_POINT_GROUP)


def policy_summaries() -> Words:
    """Return what each policy is, in a line, by name. Ours are read from the sources' class bodies: a help
    page must not import every policy and its solver. Of third parties' it says whose they are: nothing of
    theirs is loaded unless named."""
    summaries = {}
    for name, (module, attribute) in POLICIES.items():
        source = files("gkestimator.placement").joinpath(f"{module.replace('.', '/')}.py")
        if source.is_file():
            text = source.read_text(encoding="utf-8")
        else:
            text = ""
        summaries[name] = _summary(text, attribute)
    for point in _third_parties():
        owner = point.dist.name if point.dist else point.value
        summaries.setdefault(point.name, f"Third party's, of {owner}.")
    return {name: one_line(summaries[name]) for name in policy_names()}


def _summary(source: str, attribute: str) -> str:
    """Return the text that class ``attribute`` of ``source`` assigns to ``summary``; empty where it assigns
    none."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.name != attribute:
            continue
        for line in node.body:
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "summary":
                return str(ast.literal_eval(line.value))
    return ""


def policy_class(name: str) -> type[Policy]:
    """Return the class of policy ``name``. Raises UsageError: unknown, or a third party's that cannot be
    loaded."""
    kind: Any
    if name in POLICIES:
        module, attribute = POLICIES[name]
        kind = getattr(importlib.import_module(f"gkestimator.placement.{module}"), attribute)
    else:
        kind = _loaded(name)
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise UsageError(f"policy {name}: found {kind!r}, expected a class derived from Policy")
    return kind


def _loaded(name: str) -> Any:
    """Return what the third party's entry point ``name`` loads. Raises UsageError."""
    point = next((point for point in _third_parties() if point.name == name), None)
    if point is None:
        known = policy_names()
        raise UsageError(f"unknown policy {name!r}{nearest_name(name, known)} (known: {', '.join(known)})")
    try:
        return point.load()
    except Exception as e:
        raise UsageError(f"policy {name} of {point.value} cannot be loaded: {type(e).__name__}: {e}") from e


def make_policy(name: str, **options: Any) -> Policy:
    """Return policy ``name`` with ``options`` (those that are None are left out). Raises UsageError for an
    option it does not have, or whose value it refuses (TypeError and ValueError of its constructor)."""
    kind = policy_class(name)
    options = {key: value for key, value in options.items() if value is not None}
    for key in options:
        if key not in kind.options:
            if kind.options:
                known = f"; it has {', '.join(kind.options)}"
            else:
                known = ""
            raise UsageError(f"policy {name} has no option {key.replace('_', '-')}{known}")
    try:
        return kind(**options)
    except GkestimatorError:
        raise
    except (TypeError, ValueError) as e:
        shown = ", ".join(f"{key.replace('_', '-')}={value}" for key, value in options.items())
        raise UsageError(f"policy {name} does not take {shown or 'no options'}: {e}") from e


def policy_options(
    pairs: Iterable[str], given: Mapping[str, Any], *, option: str = "--option"
) -> dict[str, Any]:
    """Return ``given`` (those that are None left out) and the ``NAME=VALUE`` of ``pairs``: whole numbers,
    finite numbers, ``true``, ``false`` and, of the rest, texts. ``option`` is what messages call the pairs.
    Raises UsageError for a pair of another form or a name that stands twice."""
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        key = name.strip().replace("-", "_")
        if not equals or not key.isidentifier() or not text.strip() or len(pair) > _MAX_TEXT:
            raise UsageError(f"{option} {one_line(pair, limit=60)}: expected NAME=VALUE")
        if key in options:
            raise UsageError(f"{option} {name}: stands twice, expected once")
        if key == "coefficients":
            options[key] = Path(text.strip())
        else:
            options[key] = _value(option, name, text.strip())
    return options


def _value(option: str, name: str, text: str) -> int | float | bool | str:
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        raise UsageError(f"{option} {name}: found {text}, expected a finite number")
    return number
