"""The lowering table: sequences of kernels by signature, and how many kernels operators became."""

import json

import pytest
from _synthetic_raw import Measured, entry_of, fixed, relu, softmax, write_chunk, write_run

from gkestimator.profiling.building import build_dataset
from gkestimator.profiling.building.sequences import USHER_PCT, lowering_table, shapes_class, shares_of
from gkestimator.profiling.building.words import build_words, kernels_table
from gkestimator.profiling.plan import SweepPlan


def test_shares():
    assert shares_of({1: 1, 2: 2, 3: 3, 4: 3, 7: 1}) == (10.0, 20.0, 30.0, 40.0)
    assert shares_of({0: 5}) == (0.0, 0.0, 0.0, 0.0)
    assert sum(USHER_PCT) == 100.0


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [("[[8,100],[1,3]]", "[[8,64],[1,2]]"), ("[[]]", "[[]]"), ("[[0]]", "[[0]]"), ("no", "?"), ("[3]", "?")],
)
def test_classes_of_shapes(shapes, expected):
    assert shapes_class(shapes) == expected


def _measured(fragment, *names):
    return Measured(
        entry=entry_of(fragment),
        kernels=fixed(*((name, (10 * i + 10,) * 2) for i, name in enumerate(names))),
        repeats=2,
    )


@pytest.fixture
def result(tmp_path):
    """Two softmaxes of one class that became different kernels, a third as the first; a Relu of one kernel."""
    measured = [
        _measured(softmax(65, 100), "softmax_warp_forward"),
        _measured(softmax(66, 100), "softmax_warp_forward"),
        _measured(softmax(67, 100), "reduce_kernel", "elementwise_kernel", "softmax_kernel"),
        _measured(relu(8, 8), "vectorized_elementwise_kernel"),
    ]
    raw = tmp_path / "run"
    write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in measured)))
    write_chunk(raw, 0, measured)
    return build_dataset([raw], tmp_path / "kernels.parquet")


def test_counts_and_sequences(result):
    table = result.table
    assert table.counts == {1: 3, 3: 1} and table.percent() == (75.0, 0.0, 25.0, 0.0)
    assert table.launches == {"kernel": 6}
    softmax_table, relu_table = table.operators
    assert softmax_table.unstable and not relu_table.unstable
    assert softmax_table.shapes_class == "[[64,64]]"
    assert [len(s.entries) for s in softmax_table.sequences] == [2, 1]
    assert softmax_table.sequences[1].shares == pytest.approx((1 / 6, 2 / 6, 3 / 6))


def test_the_file_holds_it(result):
    document = json.loads(result.files[2].read_text())
    assert result.files[2].name == "kernels.lowering.json"
    assert document["percent_1_2_3_4"] == [75.0, 0.0, 25.0, 0.0]
    assert document["usher_percent_1_2_3_4"] == [2.0, 8.0, 56.0, 34.0]
    first = document["operators"][0]
    assert (first["op_type"], first["attributes"], first["unstable"]) == ("Softmax", {"axis": -1}, True)
    assert first["sequences"][0]["kernels"][0]["name"] == "softmax_warp_forward"
    assert first["sequences"][0]["kernels"][0]["grid"] == "132,8,1"


def test_words_put_it_beside_usher(result):
    lines = kernels_table(result.table).splitlines()
    assert lines[1].split() == ["all", "operators", "75", "%", "0", "%", "25", "%", "0", "%", "4"]
    assert lines[-1].split()[-8:] == ["2", "%", "8", "%", "56", "%", "34", "%"]
    assert any("different kernels: 1 of 2 signatures" in line for line in build_words(result))


def test_calls_seen_only_as_a_whole_count_as_nothing(result):
    from dataclasses import replace

    rows = [replace(r, kernel_name=None, kernels_in_op=None) for r in result.rows[:1]]
    assert lowering_table(rows).counts == {}


def test_copies_are_no_kernels(result):
    from dataclasses import replace

    (row,) = [r for r in result.rows if r.op_type == "Relu"]
    both = [row, replace(row, kernel_index=1, kind="memcpy", kernel_name="[CUDA memcpy DtoD]", family="copy")]
    table = lowering_table(both)
    assert table.counts == {1: 1} and table.launches == {"kernel": 1, "memcpy": 1}
