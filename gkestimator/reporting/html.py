"""Write a report as one HTML file that needs no network: styles, charts' library, the page's code and its data inside.

The page draws itself from a document: ``kind`` (which view), ``title``, ``subtitle``, ``closing`` (lines), and what the
view reads.
"""

from __future__ import annotations

import importlib.resources
import json
import math
from collections.abc import Mapping
from typing import Any

from gkestimator.core.escaping import markup, utf8

_FOLDER = "page"
_CODE = ("base.js", "models.js", "saved.js", "start.js")
_SKELETON = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="gkestimator">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1></h1>
<p id="subtitle" class="soft"></p>
<button id="theme" type="button">Light or dark</button>
</header>
<main></main>
<footer><ul id="closing" class="note"></ul></footer>
<script type="application/json" id="data">{data}</script>
<script>
{charts}
</script>
<script>
{code}</script>
</body>
</html>
"""


def html_page(document: Mapping[str, Any]) -> bytes:
    """Return the page of ``document``, UTF-8. Numbers that are not finite become null: JSON knows none."""
    text = json.dumps(_plain(document), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    # "</script>" or "<!--" in a name must not end the element that holds the data.
    text = text.replace("<", "\\u003c")
    page = _SKELETON.format(
        title=markup(str(document["title"])),
        style=_asset("report.css"),
        data=text,
        charts=_asset("echarts.min.js").replace("</script", "<\\/script"),
        code="\n".join(map(_asset, _CODE)),
    )
    return utf8(page)


def _asset(name: str) -> str:
    folder = importlib.resources.files("gkestimator.reporting") / _FOLDER
    return (folder / name).read_text(encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return what JSON can hold: mappings and sequences of texts, finite numbers, booleans and None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        # Six digits: a page shows three.
        return float(f"{value:.6g}")
    return value
