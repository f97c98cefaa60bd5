"""Find code that shows or writes text in another way than gkestimator.core.escaping, where names of strangers may be.

A finding is mended (``say``, ``tell``, ``utf8``, ``json_bytes``, ``csv_text``), or stands in EXCEPTIONS with its reason.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("gkestimator", "cli", "profiling", "models", "datasets")
# A quote of another language, an attribute or a tag that is open where a value is put into a text.
_OPEN = re.compile(r"""(=|: )["']$|<[A-Za-z/][^>]*$""")
_TERMINAL = {"click.echo", "click.secho", "print", "traceback.print_exception", "traceback.print_exc"}
_CSV = {"csv.writer", "csv.DictWriter"}
_HINT = re.compile(
    r"""click\.s?echo|print|sys\.std|csv|isprintable|ensure_ascii|\.encode\(\)|[=:] ?["']\{|<[A-Za-z/][^>\n]*\{"""
)
_HARMLESS = {"isatty", "flush", "fileno"}
_HASHES = {"crc32", "sha256", "blake2b", "md5", "sha1"}

# (file, rule): how many, and why.
EXCEPTIONS: dict[tuple[str, str], tuple[int, str]] = {
    # What commands print goes through these.
    ("cli/outputs.py", "terminal"): (2, "say, tell and to_stdout, which escape"),
    ("cli/__init__.py", "terminal"): (
        6,
        "errors and warnings, by one_line; click's own words about the usage",
    ),
    ("cli/progress.py", "terminal"): (1, "the bar, by printable"),
    ("cli/group.py", "terminal"): (
        3,
        "the version; to_stderr, by those who call it: say and run, which escape",
    ),
    # Pages of documentation and schemas: nothing of strangers.
    ("gkestimator/core/limits.py", "terminal"): (2, "a page of constants"),
    ("gkestimator/tables/__main__.py", "terminal"): (1, "a page of constants"),
    ("gkestimator/library/schemas/options_page.py", "terminal"): (1, "a page of constants"),
    # Children whose output their parent reads and makes one line.
    ("profiling/colocating/worker.py", "terminal"): (2, "a child's error, made one line by its parent"),
    ("profiling/collectors/probe_child.py", "terminal"): (4, "a child's error, made one line by its parent"),
    ("profiling/executors/child.py", "terminal"): (6, "a child's errors, made one line by its parent"),
    ("profiling/parsers/ncu_child.py", "terminal"): (
        3,
        "a child's error, made one line by its parent, and ASCII",
    ),
    # The one place of each form.
    ("gkestimator/core/escaping.py", "encoding"): (4, "utf8 and json_text"),
    ("gkestimator/core/escaping.py", "printable"): (3, "is_line and printable"),
    ("gkestimator/tables/csv_text.py", "csv"): (1, "csv_text"),
    ("gkestimator/tables/files.py", "json"): (1, "json_bytes"),
    ("gkestimator/tables/request_log.py", "csv"): (1, "appended line by line; names are those of a plan"),
    ("gkestimator/simulation/requests.py", "csv"): (1, "a million rows by pandas; names are those of a plan"),
    ("gkestimator/hardware/host_profile.py", "json"): (1, "a text of TOML, by one_line"),
    ("gkestimator/simulation/measured/serving_report.py", "json"): (1, "a text of TOML, by one_line"),
    ("gkestimator/core/texts.py", "encoding"): (1, "tried, not written: half a character is refused"),
    ("gkestimator/core/texts.py", "json"): (1, "tried, not written: half a character is refused"),
    # Bytes that no person reads, of texts that are ASCII or were checked.
    ("gkestimator/jobs/journal.py", "encoding"): (1, "JSON in ASCII"),
    ("gkestimator/jobs/store.py", "encoding"): (1, "JSON in ASCII"),
    ("gkestimator/estimation/traces.py", "encoding"): (2, "JSON in ASCII"),
    ("gkestimator/tables/reading.py", "encoding"): (1, "a constant"),
    ("gkestimator/lowering/memo.py", "encoding"): (1, "numbers, hashed"),
    ("gkestimator/onnx_io/reading/wire.py", "encoding"): (2, "texts that protobuf gave"),
    ("gkestimator/serving/door.py", "encoding"): (2, "the token, checked; statuses and numbers"),
    ("gkestimator/serving/door.py", "markup"): (1, "a status is a number"),
    ("gkestimator/serving/connections.py", "encoding"): (1, "constants of HTTP and a length"),
    ("gkestimator/serving/protocol.py", "encoding"): (1, "a model's own answer"),
    ("gkestimator/exporting/ray_app/app.py", "markup"): (1, "a batch size"),
    ("profiling/plan.py", "encoding"): (1, "JSON in ASCII"),
    ("profiling/running/chunk.py", "encoding"): (3, "JSON in ASCII, and a child's log as it is"),
    ("profiling/running/folder.py", "encoding"): (1, "JSON in ASCII"),
    ("profiling/running/salvage.py", "encoding"): (2, "JSON in ASCII"),
    ("profiling/executors/child.py", "encoding"): (1, "JSON in ASCII"),
    ("profiling/running/supervise.py", "encoding"): (1, "looked for, not written"),
    ("profiling/running/machine.py", "encoding"): (1, "looked for, not written"),
    ("profiling/environment.py", "encoding"): (1, "looked for, not written"),
    ("profiling/tools.py", "encoding"): (1, "looked for, not written"),
    ("profiling/collectors/kineto.py", "encoding"): (1, "looked for, not written"),
    ("profiling/sweep/catalogue/__init__.py", "encoding"): (1, "a seed"),
}


def _dotted(node: ast.AST) -> str:
    """Return a chain of attributes as it is written; what is not one of names begins with a dot."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _escapes_not(call: ast.Call) -> bool:
    return any(k.arg == "ensure_ascii" and not getattr(k.value, "value", False) for k in call.keywords)


def _rule_of_call(call: ast.Call) -> str:
    """Return the rule that a call breaks; nothing where it breaks none."""
    called = _dotted(call.func)
    if called in _TERMINAL:
        return "terminal"
    if called in _CSV or called.endswith(".to_csv"):
        return "csv"
    if called.endswith(".isprintable"):
        return "printable"
    if called == "json.dumps" and _escapes_not(call):
        return "json"
    if called.endswith(".encode") and not call.args and not call.keywords:
        text = call.func.value  # type: ignore[attr-defined]
        is_ascii = (
            isinstance(text, ast.Call) and _dotted(text.func) == "json.dumps" and not _escapes_not(text)
        )
        return "" if is_ascii else "encoding"
    return ""


def _opens_markup(text: ast.JoinedStr) -> bool:
    before = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            before = str(part.value)
        elif isinstance(part, ast.FormattedValue) and part.conversion == -1 and _OPEN.search(before):
            return True
    return False


def findings(source: str) -> Counter[str]:
    """Return how often a source breaks each rule; what only a hash reads is no writing."""
    found: Counter[str] = Counter()
    if not _HINT.search(source):  # most files: parsing all takes seconds
        return found
    left: list[ast.AST] = [ast.parse(source)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call):
            called = _dotted(node.func).rpartition(".")[2]
            if called in _HASHES:
                continue
            if rule := _rule_of_call(node):
                found[rule] += 1
            if called in _HARMLESS:
                continue
        elif isinstance(node, ast.JoinedStr):
            found["markup"] += _opens_markup(node)
        elif isinstance(node, ast.Attribute) and _dotted(node) in ("sys.stdout", "sys.stderr"):
            found["terminal"] += 1
        left += ast.iter_child_nodes(node)
    return +found


def test_every_writer_escapes_or_says_why_not() -> None:
    found: dict[tuple[str, str], int] = {}
    for folder in PRODUCT:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for rule, count in findings(file.read_text(encoding="utf-8")).items():
                found[file.relative_to(ROOT).as_posix(), rule] = count
    expected = {key: count for key, (count, _) in EXCEPTIONS.items()}
    assert found == expected, sorted(found.items() ^ expected.items())


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("click.echo(f'wrote {path}')", "terminal"),
        ("print(name, file=sys.stderr)", "terminal"),
        ("sys.stdout.write(name)", "terminal"),
        ("sys.stdout.buffer.write(name)", "terminal"),
        ("traceback.print_exception(e)", "terminal"),
        ("text = f'name: \"{model}\"'", "markup"),
        ("text = f'<a href=\"{model}\">'", "markup"),
        ("text = f'<b title={model}>'", "markup"),
        ("text = f'total{{model=\"{model}\"}} 1'", "markup"),
        ("csv.writer(stream).writerow(row)", "csv"),
        ("frame.to_csv(path)", "csv"),
        ("text.isprintable()", "printable"),
        ("json.dumps(x, ensure_ascii=False)", "json"),
        ("write_bytes(path, text.encode())", "encoding"),
        ("json.dumps(x, ensure_ascii=False).encode()", "encoding"),
    ],
)
def test_what_does_not_escape_is_found(source: str, rule: str) -> None:
    assert findings(source)[rule]


@pytest.mark.parametrize(
    "source",
    [
        "sha256(text.encode())",
        "json.dumps(x).encode()",
        "f'name: {model!r}'",
        "f'{a} < {b}'",
        "say([name])",
        "f'{n} MB'",
    ],
)
def test_what_is_safe_is_not_found(source: str) -> None:
    assert not findings(source)
