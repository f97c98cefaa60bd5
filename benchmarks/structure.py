"""Count what the code is held to: size, density, complexity, rooms, names; `--check` fails where one grew.

Product are the packages `gkestimator`, `profiling` and `cli`. Code lines are those without blanks, comments and docstrings.
Nodes are those of Python's syntax tree, which no line width changes: nodes a code line is how much a reader takes in at once.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

PRODUCT = ("gkestimator", "profiling", "cli")
PREPOSITIONS = ("Of", "What", "Whether", "Where", "How", "By", "As", "Under", "With", "In", "On", "At")
MOST_COMPLEXITY = 15
# A bar that is not reached yet is held where it stands.
DENSITY_HELD = 9.4
# The bar is what version 0.1's features were to fit in. New features add to it: raise this with them, knowingly.
NODES_HELD = 948_700
LOOSE_ALLOWED = ("__init__.py", "__main__.py")
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.match_case,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class Counts:
    """Hold the sums over all product files."""

    files: int = 0
    lines: int = 0
    nodes: int = 0
    code_lines: int = 0
    comment_lines: int = 0
    docstring_lines: int = 0
    fmt_skip: int = 0
    functions: int = 0
    complex_functions: list[tuple[int, str]] = field(default_factory=list)
    functions_with_found: list[str] = field(default_factory=list)
    verbless: list[str] = field(default_factory=list)
    class_places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def complexity(function: ast.AST) -> int:
    """Return 1 + the branches of a function, nested functions included.

    Branches are if, for, while, except, conditional expression, assert, each clause of a comprehension (its loop),
    case, and every operand of and/or beyond the first.
    """
    total = 1
    for node in ast.walk(function):
        if isinstance(node, (*BRANCHES, ast.comprehension)):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
    return total


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that docstrings of modules, classes and functions stand on."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            continue
        if not node.body or ast.get_docstring(node, clean=False) is None:
            continue
        statement = node.body[0]
        lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def comment_and_code_lines(source: str) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines that hold a comment, and of those that hold any code."""
    comments: set[int] = set()
    code: set[int] = set()
    layout = {
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    return comments, code


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a function stores to; parameters are not among them."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def read_file(path: Path, counts: Counts) -> None:
    """Add one file's figures to the counts."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    comments, code = comment_and_code_lines(source)
    documented = docstring_lines(tree)
    counts.files += 1
    counts.lines += source.count("\n")
    counts.code_lines += len(code - documented)
    counts.comment_lines += len(comments)
    counts.docstring_lines += len(documented)
    counts.fmt_skip += source.count("# fmt: skip")
    for node in ast.walk(tree):
        counts.nodes += 1
        read_node(node, path, counts)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            counts.class_places[node.name].append(str(path))


def read_node(node: ast.AST, path: Path, counts: Counts) -> None:
    """Add what a function tells: its complexity, its local names, its docstring's first word."""
    if isinstance(node, FUNCTIONS):
        counts.functions += 1
        measured = complexity(node)
        if measured > MOST_COMPLEXITY:
            counts.complex_functions.append((measured, f"{path}:{node.lineno} {node.name}"))
        if "found" in local_names(node):
            counts.functions_with_found.append(f"{path}:{node.lineno} {node.name}")
        docstring = ast.get_docstring(node) or ""
        if docstring.split(None, 1)[:1] and docstring.split(None, 1)[0] in PREPOSITIONS:
            counts.verbless.append(f"{path}:{node.lineno} {node.name}: {docstring.splitlines()[0][:70]}")


def module_name(path: Path) -> str:
    """Return the dotted name under which a product file is installed."""
    parts = list(path.with_suffix("").parts)
    if parts[0] != "gkestimator":
        parts.insert(0, "gkestimator")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def import_graph(paths: list[Path], root: Path = Path()) -> dict[str, set[str]]:
    """Return for each module the product modules that it imports when it is loaded itself.

    Imports under TYPE_CHECKING count, imports inside functions do not. `from package import name` is an import of
    `package.name` where that is a module, else of the package.
    """
    names = {module_name(path): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        graph[name] = set()
        for node in top_level(ast.parse((root / path).read_text(encoding="utf-8"))):
            for target in imported(node, package):
                resolved = target if target in names else target.rpartition(".")[0]
                if resolved in names and resolved != name:
                    graph[name].add(resolved)
    return graph


def top_level(tree: ast.Module) -> list[ast.AST]:
    """Return the statements that run at import: everything outside functions."""
    waiting: list[ast.AST] = list(tree.body)
    statements: list[ast.AST] = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS):
            continue
        statements.append(node)
        waiting.extend(
            child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.excepthandler))
        )
    return statements


def imported(node: ast.AST, package: str) -> list[str]:
    """Return the dotted names that one import statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parent = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parent, base] if base else parent)
    return [f"{base}.{alias.name}" for alias in node.names]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import one another (strongly connected components above one; Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in order:
            visit(name)
    return groups


def widest_folder(root: Path, paths: list[Path]) -> tuple[int, str]:
    """Return the most Python files that any one folder holds, `__init__.py` not counted, and that folder."""
    widths = Counter(str(path.parent.relative_to(root)) for path in paths if path.name != "__init__.py")
    folder, width = widths.most_common(1)[0]
    return width, folder


def rooms(root: Path) -> list[str]:
    """Return the packages right under `gkestimator/`, and the mapped folders beside it."""
    inside = [path.parent.name for path in sorted((root / "gkestimator").glob("*/__init__.py"))]
    return inside + [name for name in PRODUCT if name != "gkestimator"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Hold one figure of the report: its value, the bar to reach, and the places that it counts.

    ``held`` is what the figure may not pass where the bar is not reached yet: lower it as the figure falls.
    """

    name: str
    value: float | str
    bar: float | None = None
    places: tuple[str, ...] = ()
    held: float | None = None

    def above(self, limit: float | None) -> bool:
        """Return True when the figure is above a limit; None is no limit."""
        return limit is not None and isinstance(self.value, (int, float)) and self.value > limit

    @property
    def failed(self) -> bool:
        """Return True when the figure is above what it is held to: its bar, where it has not been missed so far."""
        return self.above(self.bar if self.held is None else self.held)


def figures(root: Path) -> list[Figure]:
    """Return every figure of a checkout, in the order in which they are printed."""
    paths = sorted(path for place in PRODUCT for path in (root / place).rglob("*.py"))
    counts = Counts()
    for path in paths:
        read_file(path, counts)
    loose = [p.name for p in (root / "gkestimator").glob("*.py") if p.name not in LOOSE_ALLOWED]
    repeated = {name: places for name, places in counts.class_places.items() if len(places) > 1}
    rings = circles(import_graph([path.relative_to(root) for path in paths], root))
    width, folder = widest_folder(root, paths)
    own_rooms = rooms(root)
    comments = 100 * counts.comment_lines / counts.lines
    documented = 100 * counts.docstring_lines / counts.lines
    complex_places = [f"{size} {place}" for size, place in sorted(counts.complex_functions, reverse=True)]
    return [
        Figure("files", counts.files),
        Figure("lines", counts.lines),
        Figure("code lines", counts.code_lines),
        Figure("syntax-tree nodes", counts.nodes, 725_000, held=NODES_HELD),
        Figure("nodes a code line", round(counts.nodes / counts.code_lines, 2), 9.0, held=DENSITY_HELD),
        Figure(
            f"functions above complexity {MOST_COMPLEXITY}", len(complex_places), 0, tuple(complex_places)
        ),
        Figure("loose modules in gkestimator/", len(loose), 0, tuple(loose)),
        Figure("rooms", len(own_rooms), 25, tuple(own_rooms)),
        Figure("most files in a folder", width, 25, (folder,)),
        Figure("circles of imports", len(rings), 0, tuple(" ".join(ring) for ring in rings)),
        Figure(
            "public class names with several meanings",
            len(repeated),
            0,
            tuple(f"{name}: {', '.join(places)}" for name, places in sorted(repeated.items())),
        ),
        Figure(
            "functions with a local `found`",
            len(counts.functions_with_found),
            60,
            tuple(counts.functions_with_found),
        ),
        Figure("# fmt: skip", counts.fmt_skip, 60),
        Figure(
            "functions' docstrings that begin with no verb", len(counts.verbless), 40, tuple(counts.verbless)
        ),
        Figure("comment lines per 100", round(comments, 1)),
        Figure("docstring lines per 100", round(documented, 1)),
    ]


def main() -> int:
    """Print the figures of a checkout; return 1 when `--check` finds one above what it is held to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--details", action="store_true", help="also the places that each figure counts")
    parser.add_argument(
        "--check", action="store_true", help="status 1 where a figure is above what it is held to"
    )
    arguments = parser.parse_args()
    measured = figures(arguments.root)
    for figure in measured:
        bar = ""
        if figure.bar is not None:
            bar = f"   (bar {figure.bar:g}{', missed' if figure.above(figure.bar) else ''})"
        print(f"{figure.name:48} {figure.value}{bar}")
    if arguments.details:
        for figure in measured:
            for place in figure.places:
                print(f"{figure.name}: {place}")
    return int(arguments.check and any(figure.failed for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
