"""A version follows the columns of its table and the fields of its document; older files load, newer ones are told."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import DocumentError, GkestimatorWarning, TableError
from gkestimator.core.versions import FIRST_DERIVED, record_version
from gkestimator.documents import plan_document, read_plan
from gkestimator.documents.plan import PlacementPlan
from gkestimator.tables import REQUIREMENTS, TableSchema, read_table, write_table
from gkestimator.tables.schema import column, required_column, version_column

PLAN = Path(__file__).parents[1] / "data" / "written_by_0_1" / "plan.json"


def table(*columns: tuple[str, Any, str], words: str = "") -> TableSchema[Any]:
    """A table of a version, a name and ``columns`` (name, type, unit); unknown is None where the type allows it."""
    members: list[Any] = [("schema_version", int, version_column(lambda: made.version))]
    members.append(("model", str, required_column("", words)))
    for name, hint, unit in columns:
        default = column(unit, words)
        members.append((name, hint, default))
    row = dataclasses.make_dataclass("Row", members, frozen=True, kw_only=True)
    made: TableSchema[Any] = TableSchema("test table", row)
    return made


LATENCY = ("latency_ms", float | None, "ms")
POWER = ("power_w", float | None, "W")
BEFORE, NOW = table(LATENCY), table(LATENCY, POWER)


@pytest.mark.parametrize(
    "other",
    [
        NOW,
        table(("latency_us", float | None, "ms")),
        table(("latency_ms", float | None, "us")),
        table(("latency_ms", int | None, "ms")),
        table(("latency_ms", float, "ms")),
        table(),
    ],
    ids=["added", "renamed", "unit", "type", "null rule", "removed"],
)
def test_the_version_moves_with_the_columns(other: TableSchema[Any]) -> None:
    assert other.version != BEFORE.version
    assert min(other.version, BEFORE.version) >= FIRST_DERIVED


def test_the_version_stays_where_only_words_or_the_order_change() -> None:
    assert table(LATENCY, words="Another sentence.").version == BEFORE.version
    assert table(POWER, LATENCY).version == NOW.version


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_file_of_before_a_column_loads_with_null(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"t.{form}"
    write_table(BEFORE, [BEFORE.row_type(model="m", latency_ms=2.0)], path)
    with pytest.warns(
        GkestimatorWarning, match="written when the test table had no power_w: taken as not known"
    ):
        (row,) = read_table(path, NOW)
    assert (row.model, row.latency_ms, row.power_w, row.schema_version) == ("m", 2.0, None, NOW.version)


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_newer_file_is_one_line_with_both_versions(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"t.{form}"
    write_table(NOW, [NOW.row_type(model="m", latency_ms=2.0, power_w=70.0)], path)
    with pytest.raises(TableError, match="column 'power_w' is not known to the test table") as caught:
        read_table(path, BEFORE)
    assert f"of schema version '{NOW.version}', perhaps of a newer program" in str(caught.value)
    assert f"(here: 1 or {BEFORE.version})" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_one_name_with_another_unit_is_refused(tmp_path: Path, form: str) -> None:
    wrong = table(("latency_ms", float | None, "us"))
    path = tmp_path / f"t.{form}"
    write_table(wrong, [wrong.row_type(model="m", latency_ms=2.0)], path)
    with pytest.raises(
        TableError, match=f"schema_version: found {wrong.version}, expected 1 or {NOW.version}"
    ):
        read_table(path, NOW)


def test_a_table_written_by_hand_may_leave_columns_out(tmp_path: Path) -> None:
    for version in (1, NOW.version):
        path = tmp_path / "t.csv"
        path.write_text(f"schema_version,model\n{version},m\n")
        (row,) = read_table(path, NOW)
        assert row.latency_ms is None


def test_rows_say_the_version_of_their_table() -> None:
    assert REQUIREMENTS.version == REQUIREMENTS.version_of(REQUIREMENTS.names) >= FIRST_DERIVED


@dataclass(frozen=True)
class Inner:
    size: int


@dataclass(frozen=True)
class Outer:
    inner: tuple[Inner, ...]


def test_a_document_s_version_moves_with_the_records_inside() -> None:
    changed = dataclasses.make_dataclass("Inner", [("size", int), ("share_pct", float | None)])
    other = dataclasses.make_dataclass("Outer", [("inner", tuple[changed, ...])])  # type: ignore[valid-type]
    same = dataclasses.make_dataclass("Renamed", [("inner", tuple[Inner, ...])])
    assert record_version(Outer) != record_version(other)
    assert record_version(Outer) == record_version(same) >= FIRST_DERIVED


def written(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(PLAN.read_text()) | changes))
    return path


def test_plans_of_other_versions_are_read_by_their_fields(tmp_path: Path) -> None:
    old = read_plan(PLAN)
    assert plan_document(old)["schema_version"] == record_version(PlacementPlan)
    for version in (1, record_version(PlacementPlan), FIRST_DERIVED + 5):
        assert read_plan(written(tmp_path / "p.json", schema_version=version)) == old
    newer = written(tmp_path / "p.json", schema_version=FIRST_DERIVED + 5, colour="red")
    with pytest.raises(DocumentError, match="colour") as caught:
        read_plan(newer)
    assert f"schema version {FIRST_DERIVED + 5}, perhaps of a newer program" in str(caught.value)
    assert "\n" not in str(caught.value)
    for version in (2, True, "1", None):
        with pytest.raises(DocumentError, match="schema_version: found"):
            read_plan(written(tmp_path / "p.json", schema_version=version))
