"""Read which module of the source program each node is of, as torch's exporter notes it beside the node.

Its classic exporter wrote modules into the nodes' names (``/layer1/layer1.0/conv1/Conv``); today's names nodes by
their operator (``node_conv2d_3``) and keeps the modules in the node's metadata, key ``pkg.torch.onnx.name_scopes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.onnx_io.reading.file import read_proto

_SCOPES = "pkg.torch.onnx.name_scopes"
_QUOTED = re.compile(r"'([^']{0,200})'")
_DEEPEST = 40


def module_paths(path: Path) -> Mapping[str, str]:
    """Return, by name, the modules around each node of the file: ``encoder/layer.2/attention`` for torch's scopes
    ``['', 'encoder', 'encoder.layer.2', 'encoder.layer.2.attention', 'matmul_3']``.

    Nodes without scopes are left out; a file that cannot be read (any more) has none.
    """
    try:
        nodes = read_proto(path).graph.node
    except (GkestimatorError, OSError):
        return {}
    paths = {}
    for node in nodes:
        for entry in node.metadata_props:
            if entry.key == _SCOPES:
                paths[node.name] = _path_of(entry.value)
    return paths


def _path_of(scopes: str) -> str:
    """Return scopes as a path, each step without what the one around it says already. The last scope is the node."""
    words = []
    outer = ""
    named = [scope for scope in _QUOTED.findall(scopes)[:-1] if scope]
    for scope in named[:_DEEPEST]:
        words.append(scope.removeprefix(outer))
        outer = f"{scope}."
    return "/".join(words)
