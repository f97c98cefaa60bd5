"""A kind of warning stands once below a table, however often its figures and names differ."""

from __future__ import annotations

import pytest

from gkestimator.tables.notes import Footnotes
from gkestimator.tables.requirement import Requirement
from gkestimator.tables.text import requirements_markdown, requirements_text


def rows(*warnings: str) -> list[Requirement]:
    return [
        Requirement(
            model=f"m{i}",
            gpu="T4",
            runtime="torch",
            dtype="fp32",
            batch_size=1,
            source="analytical",
            occupancy_source=None,
            memory_source=None,
            warnings=text,
        )
        for i, text in enumerate(warnings)
    ]


@pytest.mark.parametrize(
    ("warnings", "text"),
    [
        (
            ("does not fit: needs 1,122.3 GiB of 14.7 GiB", "does not fit: needs 27.1 GiB of 14.7 GiB"),
            "all rows: does not fit: needs 27.1 to 1,122.3 GiB of 14.7 GiB",
        ),
        (
            ("9 convolutions, 3 of them", "10 convolutions, 3 of them"),
            "all rows: 9 to 10 convolutions, 3 of them",
        ),
        (
            ("calculated, not learned: copy", "calculated, not learned: batchnorm, copy"),
            "all rows: calculated, not learned: batchnorm, copy (not all in every row)",
        ),
        (("batch size not given: x.0 = 1",) * 2, "all rows: batch size not given: x.0 = 1"),
    ],
)
def test_one_note_a_kind(warnings: tuple[str, ...], text: str) -> None:
    notes = Footnotes.of(warnings)
    assert notes.texts == (text,)
    assert notes.marks == ("", "")  # it holds for every row
    assert Footnotes.of((*warnings, "")).marks == ("1", "1", "")


def test_other_names_are_another_kind() -> None:
    notes = Footnotes.of(
        ("batch size not given: N = 1", "batch size not given: x.0 = 1; N 3; runs on v2.4.1")
    )
    assert len(notes.texts) == 4
    assert notes.marks == ("1", "2,3,4")


def test_a_table_without_warnings_has_none() -> None:
    assert Footnotes.of(("", "")) == Footnotes(texts=(), marks=("", ""))
    assert Footnotes.of([]) == Footnotes(texts=(), marks=())


def test_tables_for_people_have_each_note_once() -> None:
    mixed = rows("does not fit: needs 9 GiB of 8 GiB; a", "a", "does not fit: needs 7 GiB of 6 GiB")
    for text in (requirements_text(mixed), requirements_markdown(mixed)):
        assert text.count("does not fit") == 1
        assert "1: does not fit: needs 7 to 9 GiB of 6 to 8 GiB" in text and "2: a" in text
