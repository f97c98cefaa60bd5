"""A user's own rules: a Python file (or an importable module) that registers lowering and shape rules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.operators.records import OPERATORS, OperatorRecord, restore_operators

_LOADED: set[str] = set()


def load_plugin(path: str) -> None:
    """Execute the rules in ``path`` (a ``.py`` file, else a module name); a second load of the same file does
    nothing.

    The file runs with the user's rights: only name files you trust. Raises UsageError in one line when it does not
    exist, fails, registers a key that is taken, or registers nothing; what it had registered by then is taken back.
    """
    file = Path(path)
    is_file = path.endswith(".py") or file.exists()
    if is_file:
        identity = str(file.resolve())
    else:
        identity = path
    if identity in _LOADED:
        return
    if is_file and not file.is_file():
        raise UsageError(f"plug-in {path!r}: no such file, expected a Python file or a module name")
    # All built-in rules first: one that a failing plug-in imports would be taken back with it.
    importlib.import_module("gkestimator.operators")
    before = dict(OPERATORS)
    try:
        if is_file:
            _execute(file)
        else:
            importlib.import_module(path)
        if _rules(OPERATORS) == _rules(before):
            raise UsageError(f"plug-in {path!r}: registers no rule, expected @lowering_rule or @shape_rule")
    except BaseException as error:
        restore_operators(before)
        if isinstance(error, GkestimatorError | KeyboardInterrupt):
            raise
        raise UsageError(f"plug-in {path!r}: {type(error).__name__}: {error}") from error
    _LOADED.add(identity)


def _rules(records: Mapping[tuple[str, str], OperatorRecord]) -> int:
    rules = 0
    for record in records.values():
        rules += (record.shape_rule is not None) + (record.lowering_rule is not None)
    return rules


def _execute(file: Path) -> None:
    name = f"gkestimator_plugin_{len(_LOADED)}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plug-in {str(file)!r}: is no Python source, expected a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
