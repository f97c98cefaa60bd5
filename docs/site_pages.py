"""Give MkDocs the pages that nobody writes: one for each command, each kind of document, the library, each notebook.

A link of a page that leads out of docs/ is true in the repository. On the site its file is copied beside the pages, as
a page where it is Markdown, and the link leads there.
"""

from __future__ import annotations

import inspect
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import gkestimator
from gkestimator.cli.group import gkest
from gkestimator.library.schemas.registry import KINDS, published_folder, schema_of

ROOT = Path(__file__).parents[1]
OUTSIDE = "repository"
LINK = re.compile(r"(?<=\]\()(?!https?://|#)([^)#\s]+)")
SCHEMA = f"{published_folder().relative_to(ROOT).as_posix()}/"
CELL = str.maketrans({"|": "\\|", "<": "&lt;", "\n": " "})


def on_config(config: MkDocsConfig) -> None:
    """Put the generated pages into the navigation, where mkdocs.yml says `generated`."""
    made = {
        "commands": command_pages(),
        "library": {"gkestimator": library_page()},
        "file-formats": format_pages(),
    }
    config.extra["generated"] = {
        f"reference/{room}/{name}.md": text for room, pages in made.items() for name, text in pages.items()
    }
    sections = [
        section for entry in config.nav or [] for section in entry.values() if isinstance(section, list)
    ]
    for entry in (entry for section in sections for entry in section if isinstance(entry, dict)):
        for title, value in entry.items():
            if value == "generated":
                prefix = f"reference/{title.lower().replace(' ', '-')}/"
                pages = [uri for uri in config.extra["generated"] if uri.startswith(prefix)]
                entry[title] = pages if len(pages) > 1 else pages[0]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the generated pages, and the files outside docs/ that the navigation names or a page links to."""
    for uri, text in config.extra["generated"].items():
        files.append(File.generated(config, uri, content=text))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = notebook_page(json.loads(file.content_string), posixpath.basename(file.src_uri))
        files.append(File.generated(config, as_page(file.src_uri), content=text))
    waiting = [uri for uri in entries(config.nav) if uri.startswith(f"{OUTSIDE}/")]
    for file in files.documentation_pages():
        waiting += linked(file.src_uri, file.content_string)
    while waiting:
        uri = waiting.pop()
        path = ROOT / uri.removeprefix(f"{OUTSIDE}/")
        if not path.is_file() or files.get_file_from_path(uri):
            continue  # MkDocs names a page that is not there
        files.append(File.generated(config, uri, abs_src_path=str(path)))
        if path.suffix == ".md":
            waiting += linked(uri, path.read_text(encoding="utf-8"))


def linked(uri: str, text: str) -> list[str]:
    """Return where the site has the files outside docs/ that the page at `uri` links to."""
    sites = [site_path(repository_path(uri, target)) for target in LINK.findall(text)]
    return [site for site in sites if site.startswith(f"{OUTSIDE}/")]


def entries(nav: Any) -> Iterator[str]:
    """Yield every page that the navigation names."""
    if isinstance(nav, str):
        yield nav
        return
    for inner in nav.values() if isinstance(nav, dict) else nav or ():
        yield from entries(inner)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with the links that leave docs/, or come from outside, as the site has them."""
    uri = page.file.src_uri
    here = posixpath.dirname(uri)
    return LINK.sub(lambda link: posixpath.relpath(site_path(repository_path(uri, link[1])), here), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page without the roles that docstrings write before names."""
    return re.sub(r":(?:class|func|meth|data):(?=<code>)", "", html)


def repository_path(uri: str, target: str) -> str:
    """Return the path in the repository that the page at `uri` of the site means by the link `target`."""
    page = uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def site_path(path: str) -> str:
    """Return where the site has the repository's file `path`; a published schema is a page, the README the first."""
    if path == "README.md":
        return "index.md"
    if path.startswith(SCHEMA):
        return f"reference/file-formats/{path.removeprefix(SCHEMA).partition('.')[0]}.md"
    path = as_page(path)
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"


class MarkdownHelp(click.HelpFormatter):
    """Write the help of a command as Markdown: a list of options is a table, a heading a heading."""

    def write(self, string: str) -> None:
        """Write lines that are to be typed, as a block."""
        self.buffer.append(f"```sh\n{string.strip()}\n```\n")

    def getvalue(self) -> str:
        """Return the page; blocks behind each other are one."""
        return super().getvalue().replace("\n```\n```sh\n", "\n")

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage as a block."""
        self.buffer.append(f"# {prog}\n\n```text\n{prog} {args}\n```\n")

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section."""
        self.buffer.append(f"## {heading}\n\n")

    def write_paragraph(self) -> None:
        """Write the end of a paragraph."""
        self.buffer.append("\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs; one that click must not wrap keeps its lines."""
        for paragraph in inspect.cleandoc(text).split("\n\n"):
            kept = paragraph.removeprefix("\b\n")
            self.buffer.append(f"```text\n{kept}\n```\n\n" if kept != paragraph else f"{in_prose(kept)}\n\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and their meanings as a table."""
        lines = [f"| `{name}` | {in_prose(meaning).translate(CELL)} |\n" for name, meaning in rows]
        self.buffer.append("| name | meaning |\n|---|---|\n" + "".join(lines) + "\n")


def in_prose(text: str) -> str:
    """Return `text` with the options in it as code: two hyphens would become a dash."""
    return re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"`\g<0>`", text)


def as_page(path: str) -> str:
    """Return the path of the page that a notebook becomes; any other path as it is."""
    return re.sub(r"\.ipynb$", ".md", path)


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook as Markdown, with the outputs that it holds."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [output_text(output) for output in cell.get("outputs", ())]
    return "\n\n".join([*parts, f'<a href="{name}" download>This page as a notebook</a>']) + "\n"


def output_text(output: dict[str, Any]) -> str:
    """Return an output of a notebook's cell as Markdown: a picture, a table, else its text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        encoded = "".join(data["image/png"]).strip()
        return f'<img alt="What the cell draws" src="data:image/png;base64,{encoded}">'
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>|\n\s*", "", "".join(data["text/html"]), flags=re.DOTALL)
        return re.sub(
            r"<(table|tr)[^>]*>", r"<\1>", html
        )  # without pandas' own borders the theme's are taken
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def command_pages() -> dict[str, str]:
    """Return a page for every command of gkest, in the order of its help; commands inside one come behind it."""
    pages = {}
    waiting: list[tuple[click.Context | None, str, click.Command]] = [(None, "gkest", gkest)]
    while waiting:
        parent, name, command = waiting.pop(0)
        context = click.Context(command, parent, info_name=name, **command.context_settings)
        formatter = MarkdownHelp()
        command.format_help(context, formatter)
        pages[context.command_path.replace(" ", "-")] = formatter.getvalue()
        if isinstance(command, click.Group):
            inner = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
            waiting[:0] = [(context, name, found) for name, found in inner if found is not None]
    return pages


def library_page() -> str:
    """Return the page of the names that users of the library may rely on, from their docstrings; errors come last."""
    lines = [f"# The library\n\n{gkestimator.__doc__}"]
    names = [name for name in gkestimator.__all__ if name != "errors" and not name.startswith("_")]
    for name in names:
        public = getattr(gkestimator, name)
        lines.append(f"::: gkestimator.{name}" if isinstance(public, type) else function_text(name, public))
    classes = [name for name, value in vars(gkestimator.errors).items() if isinstance(value, type)]
    public = [name for name in classes if name.startswith("Gkestimator") or name.endswith("Error")]
    options = f"heading: gkestimator.errors\n      members: [{', '.join(public)}]"
    lines.append(f"::: gkestimator.core.errors\n    options:\n      {options}")
    return "\n\n".join(lines) + "\n"


def function_text(name: str, function: Callable[..., object]) -> str:
    """Return the section of a function: its signature as it is called, an option a line, and its docstring."""
    parameters = inspect.signature(function).parameters.values()
    lines = []
    for parameter in parameters:
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {parameter.annotation}{default}")
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        lines.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    called = "".join(f"    {line},\n" for line in lines)
    return (
        f"## gkestimator.{name} {{ #gkestimator.{name} }}\n\n```python\n{name}(\n{called})\n```\n\n"
        f"::: gkestimator.{name}\n    options: {{show_root_heading: false, show_root_toc_entry: false}}"
    )


def format_pages() -> dict[str, str]:
    """Return a page for every kind of document: its fields, as its JSON Schema has them."""
    pages = {}
    for kind, document in KINDS.items():
        summary = document.summary
        lines = [
            f"# {summary if summary[1].isupper() else summary[0].upper() + summary[1:]}",
            f"`gkest schema {kind}` prints this as JSON Schema; a field in **bold** must be there.",
            "| field | value | meaning |\n|---|---|---|",
        ]
        rows = "\n".join(fields(schema_of(kind)))
        pages[kind] = "\n\n".join(lines) + f"\n{rows}\n"
    return pages


def fields(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a row for every field below `schema`, those inside lists and alternatives included."""
    for inner in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from fields(inner, prefix)
    for name, own in schema.get("properties", {}).items():
        field = f"`{prefix}{name}`"
        shown = f"**{field}**" if name in schema.get("required", ()) else field
        yield f"| {shown} | {values(own).translate(CELL)} | {own.get('description', '').translate(CELL)} |"
        yield from fields(own, f"{prefix}{name}.")
    if "items" in schema:
        yield from fields(schema["items"], f"{prefix.removesuffix('.')}[].")


def values(schema: dict[str, Any]) -> str:
    """Return in words which values `schema` takes."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(values(inner) for inner in schema.get("anyOf", schema.get("oneOf", ())))
    kinds = schema.get("type", "any")
    text = kinds if isinstance(kinds, str) else " or ".join(kinds)
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    if "minimum" in schema and schema["minimum"] == schema.get("maximum"):
        return f"`{schema['minimum']}`"
    limits = [f"{word} {schema[key]:,}".removesuffix(".0") for key, word in bounds.items() if key in schema]
    return " ".join([text, *limits])
