"""The policies by name. One line for each of ours; third parties by entry point (group
``gkestimator.policies``), loaded only when named."""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

from gkestimator.core.errors import GkestimatorError, UsageError, one_line
from gkestimator.placement.policy import Policy

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


def policy_names() -> tuple[str, ...]:
    """Ours in order, then third parties' as installed; nothing is loaded."""
    others = sorted({e.name for e in entry_points(group=ENTRY_POINT_GROUP)} - set(POLICIES))
    return (*POLICIES, *others)


def policy_summaries() -> dict[str, str]:
    """What each policy is, in a line, by name. Ours are read from the sources' class bodies: a help page
    must not import every policy and its solver. Of third parties' it says whose they are: nothing
    of theirs is loaded unless named."""
    found = {}
    for name, (module, attribute) in POLICIES.items():
        source = files("gkestimator.placement").joinpath(f"{module.replace('.', '/')}.py")
        found[name] = _summary(source.read_text(encoding="utf-8"), attribute) if source.is_file() else ""
    for point in entry_points(group=ENTRY_POINT_GROUP):
        owner = point.dist.name if point.dist else point.value
        found.setdefault(point.name, f"Third party's, of {owner}.")
    return {name: one_line(found[name]) for name in policy_names()}


def _summary(source: str, attribute: str) -> str:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            for line in node.body:
                if isinstance(line, ast.Assign):
                    target = line.targets[0]
                else:
                    target = getattr(line, "target", None)
                if isinstance(target, ast.Name) and target.id == "summary":
                    value = getattr(line, "value", None)
                    if value is not None:
                        return str(ast.literal_eval(value))
                    return ""
    return ""


def policy_class(name: str) -> type[Policy]:
    """The class of policy ``name``. Raises UsageError: unknown, or a third party's that cannot be loaded."""
    found: Any
    if name in POLICIES:
        module, attribute = POLICIES[name]
        found = getattr(importlib.import_module(f"gkestimator.placement.{module}"), attribute)
    else:
        points = [e for e in entry_points(group=ENTRY_POINT_GROUP) if e.name == name]
        if not points:
            close = difflib.get_close_matches(name, policy_names(), n=1)
            if close:
                hint = f"; did you mean {close[0]}?"
            else:
                hint = f" ({', '.join(policy_names())})"
            raise UsageError(f"unknown policy {name!r}{hint}")
        try:
            found = points[0].load()
        except Exception as e:
            raise UsageError(
                f"policy {name} of {points[0].value} cannot be loaded: {type(e).__name__}: {e}"
            ) from e
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise UsageError(f"policy {name}: found {found!r}, expected a class derived from Policy")
    return found


def make_policy(name: str, **options: Any) -> Policy:
    """Policy ``name`` with ``options`` (those that are None are left out). Raises UsageError for an option it
    does not have, or whose value it refuses (TypeError and ValueError of its constructor)."""
    found = policy_class(name)
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in found.options:
            known = f"; it has {', '.join(found.options)}" if found.options else ""
            raise UsageError(f"policy {name} has no option {key.replace('_', '-')}{known}")
    try:
        return found(**given)
    except GkestimatorError:
        raise
    except (TypeError, ValueError) as e:
        shown = ", ".join(f"{key.replace('_', '-')}={value}" for key, value in given.items())
        raise UsageError(f"policy {name} does not take {shown or 'no options'}: {e}") from e
