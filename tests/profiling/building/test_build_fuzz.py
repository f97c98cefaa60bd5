"""Raw folders from strangers: whatever stands in their files, rows come out or one line does."""

import json
import random
import shutil

import pytest
from _synthetic_raw import small_run

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.building import build_dataset

ODD = (
    None,
    "",
    "x",
    "\x00",
    -1,
    0,
    1e308,
    True,
    [],
    {},
    [None],
    {"a": []},
    2**70,
    "9" * 400,
    "../..",
    float("nan"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    small_run(folder)
    return folder


def _leaves(value, path=()):
    """Paths of everything in a JSON document, containers too."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from _leaves(child, (*path, key))


def _with(value, path, odd):
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], odd)
    return copy


def _mutated(text, rng, lines):
    """The document, or one of its lines, with something odd in one place."""
    parts = text.splitlines() if lines else [text]
    at = rng.randrange(len(parts))
    document = json.loads(parts[at])
    parts[at] = json.dumps(_with(document, rng.choice(list(_leaves(document))), rng.choice(ODD)))
    return "\n".join(parts) + "\n"


def _must_hold(folder, where):
    try:
        result = build_dataset([folder], folder.parent / "kernels.parquet")
    except GkestimatorError as e:
        assert "\n" not in str(e), where
    else:
        assert result.rows and all("\n" not in line for line in (*result.problems, *result.notes)), where


FILES = {
    "run.json": 60,
    "plan.json": 40,
    "chunks/000000-cuda0-timeline/chunk.json": 80,
    "chunks/000000-cuda0-timeline/records.jsonl": 80,
    "chunks/000000-cuda0-timeline/environment.jsonl": 60,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_odd_values(whole, tmp_path, name):
    rng = random.Random(name)
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    text = (whole / name).read_text()
    for i in range(FILES[name]):
        odd = _mutated(text, rng, name.endswith("l"))
        (folder / name).write_text(odd)
        _must_hold(folder, (name, i, odd[:2000]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_cut_and_garbled_bytes(whole, tmp_path, name):
    rng = random.Random(name)
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    data = (whole / name).read_bytes()
    for i in range(12):
        broken = bytearray(data[: rng.randrange(len(data))] if i % 2 else data)
        for _ in range(0 if i % 2 else 6):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        (folder / name).write_bytes(bytes(broken))
        _must_hold(folder, (name, i))
