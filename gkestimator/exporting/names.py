"""Names of Kubernetes objects, label values and files, made from model names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping

# Objects append to their names (a KServe predictor "-predictor", a Pod its hashes), and a label holds 63 characters.
MAX_LABEL = 52
_OTHER = re.compile(r"[^a-z0-9]+")


def dns_label(text: str) -> str:
    """Return ``text`` as a DNS label that begins with a letter (RFC 1035): small letters, digits and single
    hyphens between, at most MAX_LABEL characters. Not unique: ``a_b`` and ``a.b`` give one label."""
    return _whole(text)[:MAX_LABEL].strip("-")


def _whole(text: str) -> str:
    label = _OTHER.sub("-", text.lower()).strip("-")
    if label and label[0].isalpha():
        return label
    return f"m-{label}".strip("-")


def dns_labels(texts: Iterable[str]) -> Mapping[str, str]:
    """Return a label of its own for each of ``texts``, independent of their order.

    A text that is a label already keeps it. Where two texts would share a label, or a text had to be cut, the
    label ends in a part of the text's SHA-256. The way back is the mapping itself, which exports carry
    (annotation ``gkestimator/model``).
    """
    distinct = sorted(set(texts))
    wanted = {text: dns_label(text) for text in distinct}
    sharing: dict[str, int] = {}
    for label in wanted.values():
        sharing[label] = sharing.get(label, 0) + 1
    labels = {text: text for text, label in wanted.items() if text == label}
    taken = set(labels.values())
    plain = [
        t for t in distinct if t not in labels and sharing[wanted[t]] == 1 and len(_whole(t)) <= MAX_LABEL
    ]
    for text in plain:
        if wanted[text] not in taken:
            labels[text] = wanted[text]
            taken.add(wanted[text])
    for text in distinct:
        if text not in labels:
            labels[text] = next(name for name in _hashed(text, wanted[text]) if name not in taken)
            taken.add(labels[text])
    return {text: labels[text] for text in distinct}


def _hashed(text: str, label: str) -> Iterator[str]:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    for length in range(8, 41):
        yield f"{label[: MAX_LABEL - length - 1].strip('-')}-{digest[:length]}"
