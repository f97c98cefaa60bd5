"""Which files are merged, under which names, at which batch sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gkestimator.core.errors import UsageError
from gkestimator.merging.naming import distinct_prefixes, model_names
from gkestimator.merging.options import MOST_MODELS, MergeOptions
from gkestimator.merging.sources import files_of, sources_of


def test_stems_are_the_names_and_equal_stems_keep_their_folder() -> None:
    assert model_names([Path("x/a.onnx"), Path("x/b.onnx")]) == ("a", "b")
    assert model_names([Path("x/a.onnx"), Path("y/a.onnx")]) == ("x/a", "y/a")
    assert model_names([Path("a.onnx"), Path("a.onnx")]) == ("a", "a#2")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["merged", "b"], ("merged#2", "b")),
        (["merged/a", "merged/b"], ("merged#2/a", "merged#2/b")),
        (["timm", "timm/resnet"], ("timm", "timm#2/resnet")),
        (["timm/resnet", "timm"], ("timm/resnet", "timm#2")),
        (["a", "a#2", "a"], ("a", "a#2", "a#3")),
        (["line\nbreak", "half\udcff"], (r"line\nbreak", r"half\xff")),
        (["/", "a"], ("model", "a")),
    ],
)
def test_names_that_would_clash_as_prefixes(names: list[str], expected: tuple[str, ...]) -> None:
    assert distinct_prefixes(names) == expected


@given(st.lists(st.text(alphabet="ab/#2\n\udcff", max_size=6) | st.just("merged"), max_size=8))
def test_no_value_of_one_model_can_be_called_like_one_of_another(names: list[str]) -> None:
    found = [f"{p}/" for p in distinct_prefixes(names)]
    assert len(found) == len(names)
    for i, one in enumerate(found):
        one.encode()
        assert one.isprintable()
        for other in (*found[:i], *found[i + 1 :], "merged/"):
            assert not one.startswith(other) and not other.startswith(one)


def test_a_file_named_twice_is_there_twice_and_a_folder_is_every_model_in_it(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.onnx", "note.txt"):
        (tmp_path / name).touch()
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    assert files_of([str(b), str(a), str(b)]) == (b, a, b)
    assert files_of([str(tmp_path)]) == (a, b)
    assert files_of([str(tmp_path / "*.onnx"), str(b)]) == (a, b, b)


@pytest.mark.parametrize("argument", ["none.onnx", "none*.onnx", "empty", "a\0b", "x" * 5000])
def test_what_means_no_file(tmp_path: Path, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        files_of([argument])


def test_one_batch_size_is_for_all_and_several_are_one_each() -> None:
    paths = [Path("a.onnx"), Path("b.onnx"), Path("c.onnx")]

    def batches(*sizes: int) -> list[int | None]:
        return [s.batch_size for s in sources_of(paths, MergeOptions(batch_sizes=sizes or None))]

    assert batches() == [None, None, None]
    assert batches(4) == [4, 4, 4]
    assert batches(1, 8, 1) == [1, 8, 1]
    for wrong in ((1, 8), (0,), (True,), (10**9,)):
        with pytest.raises(UsageError, match="batch.size"):
            batches(*wrong)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 models"), (1, "1 model,"), (MOST_MODELS + 1, "at most 64")]
)
def test_too_few_and_too_many(number: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        sources_of([Path(f"{i}.onnx") for i in range(number)], MergeOptions())
