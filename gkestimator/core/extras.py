"""How an extra is installed, in words that work from where this installation came: a checkout, a wheel or an index.

``pip install 'gkestimator[ray]'`` asks an index for nothing but what the extra needs, as long as gkestimator itself is
there. An editable install is named by its folder, so that pip leaves it editable.
"""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname

_NAME = "gkestimator"


def install_extra(extra: str) -> str:
    """Return the command that installs ``extra`` of pyproject.toml beside this installation, for any shell and from any
    folder."""
    folder = _checkout()
    if folder is None:
        return f"pip install '{_NAME}[{extra}]'"
    return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"


def _checkout() -> str | None:
    """Return the folder of which this is an editable install (PEP 610); None where it is none."""
    try:
        recorded = json.loads(metadata.distribution(_NAME).read_text("direct_url.json") or "{}")
        if not recorded["dir_info"]["editable"]:
            return None
        return url2pathname(urlsplit(recorded["url"]).path)
    except (metadata.PackageNotFoundError, LookupError, TypeError, ValueError):
        return None
