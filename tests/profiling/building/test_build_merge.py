"""Kernel datasets merged: versions, conflicts, GPUs side by side, provenance and GPU files."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import TableError, UsageError
from gkestimator.profiling.building import build_dataset, merge_datasets
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement, read_table, write_table


def rows_of(
    entry="Relu-fp32-1", *, gpu="T4", kernels=2, us=10.0, quality="ok", repeats=10, cv=0.01, occupancy=None
):
    return [
        KernelMeasurement(
            entry_id=entry, gpu=gpu, runtime="torch", collector="nsys", op_type="Relu", dtype="fp32",
            input_shapes="[[4, 100]]", family="elementwise", kernel_index=i, kernels_in_op=kernels,
            kernel_name=f"kernel_{i}", duration_us=us + i, duration_cv=cv, repeats=repeats, quality=quality,
            achieved_occupancy_pct=occupancy,
        )
        for i in range(kernels)
    ]  # fmt: skip


def written(tmp_path, name, *groups):
    path = tmp_path / name
    write_table(KERNEL_DATASET, [row for group in groups for row in group], path)
    return path


def merged(tmp_path, *paths):
    result = merge_datasets(paths, tmp_path / "merged.parquet")
    assert read_table(tmp_path / "merged.parquet", KERNEL_DATASET) == result.rows
    return result


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"quality": "noisy", "repeats": 99, "cv": 0.0}, {"quality": "ok"}),
        ({"quality": "throttled"}, {"quality": "noisy"}),
        ({"repeats": 9, "cv": 0.0}, {"repeats": 10, "cv": 0.05}),
        ({"cv": 0.03}, {"cv": 0.02}),
        ({"cv": None}, {"cv": 0.02}),
        ({"repeats": None}, {"repeats": 1}),
        ({"repeats": 99, "cv": 0.0}, {"occupancy": 40.0}),
        ({"occupancy": 40.0, "quality": "noisy"}, {}),
    ],
)
def test_the_better_measurement_is_kept_whichever_comes_first(tmp_path, worse, better):
    one = written(tmp_path, "one.parquet", rows_of(us=50.0, **worse))
    two = written(tmp_path, "two.parquet", rows_of(us=10.0, **better))
    for paths in ((one, two), (two, one)):
        result = merged(tmp_path, *paths)
        assert [r.duration_us for r in result.rows] == [10.0, 11.0]
        assert (result.conflicts, result.identical) == (1, 0)
        assert dict(result.kept) == {one: 0, two: 1}


def test_one_noisy_launch_makes_the_operator_noisy(tmp_path):
    spoilt = rows_of(us=50.0, repeats=99)
    spoilt[1] = replace(spoilt[1], quality="noisy")
    result = merged(
        tmp_path, written(tmp_path, "a.parquet", spoilt), written(tmp_path, "b.parquet", rows_of())
    )
    assert [r.duration_us for r in result.rows] == [10.0, 11.0]


def test_operators_are_taken_whole(tmp_path):
    """Three kernels of one run must not be mixed with two of another."""
    result = merged(
        tmp_path,
        written(tmp_path, "a.parquet", rows_of(kernels=3, repeats=5)),
        written(tmp_path, "b.parquet", rows_of(kernels=2, repeats=6)),
    )
    assert [r.kernel_index for r in result.rows] == [0, 1] and {r.kernels_in_op for r in result.rows} == {2}


def test_identical_duplicates_are_dropped(tmp_path):
    one, two = written(tmp_path, "a.parquet", rows_of()), written(tmp_path, "b.csv", rows_of())
    result = merged(tmp_path, one, two)
    assert (result.identical, result.conflicts, len(result.rows)) == (1, 0, 2)
    assert any("1 identical duplicates dropped" in line for line in result.lines())


def test_gpus_stand_side_by_side(tmp_path):
    result = merged(
        tmp_path,
        written(tmp_path, "a.parquet", rows_of(gpu="T4")),
        written(tmp_path, "b.parquet", rows_of(gpu="L4")),
    )
    assert [r.gpu for r in result.rows] == ["T4", "T4", "L4", "L4"] and not result.conflicts


def test_version_1_becomes_version_2(tmp_path):
    path = written(tmp_path, "old.csv", rows_of())
    lines = path.read_text().splitlines()
    later = {"opset", "graph", "kind", "duration_cold_us", "entry_us", "host_us", "power_w", "tenants"}
    names = lines[0].split(",")
    keep = [i for i, n in enumerate(names) if n not in later]
    import csv

    old = [[row[i] for i in keep] for row in csv.reader(lines)]
    for row in old[1:]:
        row[0] = "1"
    with open(path, "w", newline="") as stream:
        csv.writer(stream).writerows(old)
    result = merged(tmp_path, path)
    assert {r.schema_version for r in result.rows} == {KERNEL_DATASET.version} and {
        r.kind for r in result.rows
    } == {"kernel"}
    assert result.table.counts == {2: 1}


def test_a_dataset_that_cannot_be_read_is_a_problem_not_the_end(tmp_path):
    good, bad = written(tmp_path, "good.parquet", rows_of()), tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 no")
    result = merged(tmp_path, bad, good)
    assert result.exit_status == 1 and len(result.problems) == 1 and "bad.parquet" in result.problems[0]
    with pytest.raises(TableError, match=r"bad\.parquet"):
        merge_datasets([bad], tmp_path / "merged.parquet")


def test_merging_into_one_of_them(tmp_path):
    one, two = (
        written(tmp_path, "a.parquet", rows_of()),
        written(tmp_path, "b.parquet", rows_of("Relu-fp32-2")),
    )
    merge_datasets([one, two], one)
    assert len(read_table(one, KERNEL_DATASET)) == 4


def test_provenance_goes_along_where_it_is_that_of_the_file(raw, tmp_path):
    build_dataset([raw], tmp_path / "a.parquet")
    other = written(tmp_path, "b.parquet", rows_of())
    (tmp_path / "b.json").write_text(json.dumps({"sha256": "of another file"}))
    result = merged(tmp_path, tmp_path / "a.parquet", other)
    sources = json.loads((tmp_path / "merged.json").read_text())["sources"]
    assert sources[0]["provenance"]["sources"][0]["versions"]["torch"] == "2.9.0"
    assert sources[1]["provenance"] is None and any("another file" in note for note in result.notes)
    assert [s["operators_kept"] for s in sources] == [3, 1]


def test_gpu_files_go_along(tmp_path):
    for name, text in (("a", b"first"), ("b", b"second")):
        written(tmp_path, f"{name}.parquet", rows_of(f"Relu-{name}", gpu="RTX-9999"))
        (tmp_path / f"{name}.RTX-9999.toml").write_bytes(text)
    result = merged(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (tmp_path / "merged.RTX-9999.toml").read_bytes() == b"first"
    assert any("differs from that of a.parquet" in note for note in result.notes)


def test_a_gpu_file_that_is_there_with_other_figures_stays(tmp_path):
    written(tmp_path, "a.parquet", rows_of(gpu="RTX-9999"))
    (tmp_path / "a.RTX-9999.toml").write_bytes(b"of the device")
    there = tmp_path / "merged.RTX-9999.toml"
    there.write_bytes(b"corrected by hand")
    result = merged(tmp_path, tmp_path / "a.parquet")
    assert there.read_bytes() == b"corrected by hand" and there not in result.files
    assert any("merged.RTX-9999.toml: is there with other figures" in note for note in result.notes)
    there.write_bytes(b"of the device")
    assert there in merged(tmp_path, tmp_path / "a.parquet").files


def test_a_raw_folder_is_no_dataset(raw, tmp_path):
    with pytest.raises(TableError, match="found a folder, expected a dataset"):
        merge_datasets([raw], tmp_path / "merged.parquet")
    with pytest.raises(TableError, match=r"suffix '.md', expected .parquet, .csv, .json$"):
        merge_datasets([tmp_path / "a.md"], tmp_path / "merged.parquet")


@pytest.mark.parametrize("text", ['{"schema_version": 1, "entries": []}', "not JSON", "[1]"])
def test_no_file_but_an_earlier_provenance_is_replaced(raw, tmp_path, text):
    """``-o plan.parquet`` beside the plan.json that was measured."""
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    one = written(tmp_path, "a.parquet", rows_of())
    for make in (
        lambda: merge_datasets([one], tmp_path / "plan.parquet"),
        lambda: build_dataset([raw], tmp_path / "plan.csv"),
    ):
        with pytest.raises(UsageError, match=r"plan\.json: found something else"):
            make()
    assert plan.read_text() == text and not list(tmp_path.glob("plan.[!j]*"))
    plan.unlink()
    for _ in range(2):
        merge_datasets([one], tmp_path / "plan.parquet")
    assert json.loads(plan.read_text())["dataset"] == "plan.parquet"


def test_a_gpu_name_is_no_path(tmp_path):
    path = written(tmp_path, "a.parquet", rows_of(gpu="../../etc/passwd"))
    merge_datasets([path], tmp_path / "merged.parquet")
    assert {p.name for p in tmp_path.iterdir()} == {
        "a.parquet", "merged.parquet", "merged.json", "merged.lowering.json"
    }  # fmt: skip


_GROUPS = st.lists(
    st.tuples(
        st.sampled_from(["Relu-1", "Relu-2", "Relu-3"]),
        st.sampled_from(["T4", "L4"]),
        st.integers(1, 3),
        st.sampled_from(["ok", "noisy", "throttled"]),
        st.sampled_from([None, 5, 10]),
        st.sampled_from([None, 0.01, 0.02]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(datasets=st.lists(_GROUPS, min_size=1, max_size=3))
def test_merging_in_any_order_keeps_equally_good_whole_operators(tmp_path_factory, datasets):
    tmp_path = tmp_path_factory.mktemp("merge")
    paths, offered = [], {}
    for number, groups in enumerate(datasets):
        chosen = {(entry, gpu): rest for entry, gpu, *rest in groups}
        made = []
        for (entry, gpu), (kernels, quality, repeats, cv) in chosen.items():
            group = rows_of(
                entry, gpu=gpu, kernels=kernels, quality=quality, repeats=repeats, cv=cv, us=number + 1.0
            )
            made.append(group)
            offered.setdefault((entry, gpu), []).append(tuple(group))
        paths.append(written(tmp_path, f"{number}.parquet", *made))
    for order in itertools.permutations(paths):
        result = merge_datasets(order, tmp_path / "merged.parquet")
        groups = {}
        for row in result.rows:
            groups.setdefault((row.entry_id, row.gpu), []).append(row)
        assert groups.keys() == offered.keys()
        for key, group in groups.items():
            assert tuple(group) in offered[key]
            words = ("ok", "noisy", "throttled")
            best = min(words.index(g[0].quality) for g in offered[key])
            assert words.index(group[0].quality) == best
        again = merge_datasets([tmp_path / "merged.parquet", *order], tmp_path / "again.parquet")
        assert again.rows == result.rows  # nothing in the parts beats what was kept
