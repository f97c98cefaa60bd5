"""Traces: the formats, in rows made up after the published schemas; order, streams, lengths; what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.simulation.traces import reading
from gkestimator.simulation.traces.formats import FORMATS
from gkestimator.simulation.traces.ordering import in_order
from gkestimator.simulation.traces.reading import Trace

SHARED = os.environ.get("GKEST_SHARED", "")
LLM_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:04.0319600,110,27
"""
LLM_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:00+00:00,1,1
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,API log
118,ChatGPT,1360,647,2007,API log
"""
FUNCTIONS_2021 = """app,func,end_timestamp,duration
a1,f1,10.5,0.5
a1,f2,11.0,8.0
a2,f1,11.5,0.25
a1,f1,12.0,11.0
"""
FUNCTIONS_2019 = "HashOwner,HashApp,HashFunction,Trigger," + ",".join(map(str, range(1, 1441))) + "\n"
FUNCTIONS_2019 += "o,a,f,http," + ",".join(["3", "0", *["1"] * 1438]) + "\n"
FUNCTIONS_2019 += "o,a,g,timer," + ",".join(["0", "7", *["0"] * 1438]) + "\n"
PLAIN = "length,time_s,model\n8,0.5,b\n16,0.5,a\n32,2.25e0,b\n"


def opened(tmp_path: Path, text: str, *, form: str | None = None) -> Trace:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return Trace(path, form=form)


def whole(trace: Trace) -> tuple[list[float], list[int], list[int] | None]:
    rows = list(trace.rows())
    lengths = [r.lengths for r in rows if r.lengths is not None]
    return (
        np.concatenate([r.times_s for r in rows]).tolist(),
        np.concatenate([r.streams for r in rows]).tolist(),
        np.concatenate(lengths).tolist() if lengths else None,
    )


def test_azure_llm_2023_counts_from_its_first_request(tmp_path: Path) -> None:
    trace = opened(tmp_path, LLM_2023)
    assert trace.form.name == "azure-llm"
    assert whole(trace) == ([0.0, 0.052, 60.052], [0, 0, 0], [4808, 3180, 110])


def test_azure_llm_2024(tmp_path: Path) -> None:
    trace = opened(tmp_path, LLM_2024.replace("00:00:00+00:00", "00:00:01+00:00"))
    assert whole(trace)[0] == [0.0, 0.007405, 0.99007]
    with pytest.raises(
        DocumentError, match=r"line 4: TIMESTAMP: found '2024-05-10 00:00:00\+00:00', earlier than line 3"
    ):
        whole(opened(tmp_path, LLM_2024))  # fmt: skip


def test_burstgpt(tmp_path: Path) -> None:
    trace = opened(tmp_path, BURSTGPT)
    assert whole(trace) == ([5, 45, 118, 118], [0, 0, 1, 2], [472, 1087, 417, 1360])
    assert trace.streams == ("ChatGPT,Conversation log", "GPT-4,API log", "ChatGPT,API log")


def test_functions_2021_are_put_in_order_of_their_starts(tmp_path: Path) -> None:
    trace = opened(tmp_path, FUNCTIONS_2021)
    # Starts 10, 3, 11.25, 1
    assert whole(trace) == ([1.0, 3.0, 10.0, 11.25], [0, 1, 0, 2], None)
    early = opened(tmp_path, FUNCTIONS_2021.replace("12.0,11.0", "12.0,14.0"))
    assert whole(early)[0] == [0.0, 5.0, 12.0, 13.25]  # all moved by the 2 s before 0


def test_functions_2019(tmp_path: Path) -> None:
    trace = opened(tmp_path, FUNCTIONS_2019)
    (block,) = trace.minutes()
    assert block.counts.shape == (2, 1440)
    assert block.counts[:, :3].tolist() == [[3, 0, 1], [0, 7, 0]]
    assert block.counts.sum() == 3 + 1438 + 7
    with pytest.raises(DocumentError, match="found counts per minute"):
        next(trace.rows())
    with pytest.raises(DocumentError, match="found single requests"):
        next(opened(tmp_path, PLAIN).minutes())


@pytest.mark.parametrize("text", [FUNCTIONS_2021, BURSTGPT, PLAIN, LLM_2023])
def test_columns_may_stand_in_any_order(tmp_path: Path, text: str) -> None:
    rows = [line.split(",") for line in text.splitlines()]
    turned = "".join(",".join([*row[2:], row[0], row[1]][::-1]) + "\n" for row in rows)
    assert whole(opened(tmp_path, turned)) == whole(opened(tmp_path, text))


def test_plain(tmp_path: Path) -> None:
    trace = opened(tmp_path, PLAIN)
    assert whole(trace) == ([0.5, 0.5, 2.25], [0, 1, 0], [8, 16, 32])
    assert trace.streams == ("b", "a")
    assert whole(opened(tmp_path, "time_s\n0\n1\n")) == ([0, 1], [0, 0], None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y\n1,2\n", "line 1: found columns x,y, expected time_s[,model][,length]; or "),
        ("time_s,modle\n1,a\n", "line 1: column 'modle' is not one of csv, expected time_s[,model][,length]"),
        ("time_s,time_s\n1,1\n", "line 1: found column 'time_s' twice"),
        ("TIMESTAMP,ContextTokens\n", "line 1: column 'GeneratedTokens' of azure-llm is missing"),
        ("Timestamp,Model,Request tokens\n", "line 1: column 'Response tokens' of burstgpt is missing"),
        ("app,func,end_timestamp\n", "line 1: column 'duration' of azure-functions-2021 is missing"),
        ("HashOwner,HashApp,HashFunction,Trigger,1,2,4\n", "minute 3 is missing before minute 4"),
        ("HashOwner,HashApp,HashFunction,Trigger,2,3\n", "column '1' of azure-functions-2019 is missing"),
        ("HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,-2\n", "line 2: count: found '-2', expected a whole"),
        ("HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,\n", "line 2: count: found '', expected a whole"),
        ("HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,1000000001\n", "line 2: minute 2: found 1,000,000,001 requests"),
        ("time_s\n1\n0.5\n", "line 3: time_s: found '0.5', earlier than line 2 (1), expected rows in order"),
        ("time_s\n1\n-0.5\n", "line 3: time_s: found '-0.5', expected a number of at least 0"),
        ("time_s\nnan\n", "line 2: time_s: found 'nan', expected a number"),
        ("time_s,length\n1,4.5\n", "line 2: length: found '4.5', expected a whole number"),
        ("time_s,length\n1,2147483648\n", "line 2: length: found 2147483648, expected fewer than"),
        ("app,func,end_timestamp,duration\na,f,1,-1\n", "line 2: duration: found '-1'"),
        ("app,func,end_timestamp,duration\na,f,1\n", "line 2: found 3 fields, expected 4"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DocumentError) as found:
        trace = opened(tmp_path, text)
        list(trace.minutes() if trace.form.clock == "minutes" else trace.rows())
    assert message in str(found.value)
    assert str(found.value).startswith(str(tmp_path / "trace.csv"))


def test_a_format_that_is_asked_for(tmp_path: Path) -> None:
    assert opened(tmp_path, PLAIN, form="csv").form.name == "csv"
    with pytest.raises(DocumentError, match="column 'TIMESTAMP' of azure-llm is missing"):
        opened(tmp_path, PLAIN, form="azure-llm")
    with pytest.raises(UsageError, match="expected one of csv, azure-functions-2019"):
        opened(tmp_path, PLAIN, form="alibaba")


def test_streams_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_STREAMS", 3)
    text = "time_s,model\n" + "".join(f"{i},m{i % 4}\n" for i in range(8))
    with pytest.raises(DocumentError, match="line 5: found more than 3 streams"):
        whole(opened(tmp_path, text))


def test_names_of_streams_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few names as there may be can be as long as lines."""
    monkeypatch.setattr(reading, "_MAX_NAME_BYTES", 2500)
    text = "time_s,model\n" + "".join(f"{i},{'m' * 990}{i % 4}\n" for i in range(8))
    with pytest.raises(
        DocumentError, match="line 4: found more than .* streams .*, or 2,500 bytes of their names"
    ):
        whole(opened(tmp_path, text))


def test_a_name_with_a_comma_is_the_models(tmp_path: Path) -> None:
    trace = opened(tmp_path, 'time_s,model\n1,"a,b"\n2,c\n')
    trace.known = ("a,b", "c")
    assert [rows.streams.tolist() for rows in trace.rows()] == [[0, 1]]
    assert trace.streams == ("a,b", "c")


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=12), max_size=12),
    st.integers(1, 30),
)
@settings(max_examples=60, deadline=None)
def test_order_on_disk_is_a_stable_sort(blocks: list[list[tuple[int, int]]], run: int) -> None:
    """Few distinct times: ties everywhere. ``run`` small: many runs, merged a row or two at a time."""
    rows = [row for block in blocks for row in block]
    given_blocks = (
        (np.array([float(t) for t, _ in b]), np.array([s for _, s in b], np.int64)) for b in blocks
    )
    merged = list(in_order(given_blocks, run=run))
    found = [(t, s) for times, streams in merged for t, s in zip(times, streams, strict=True)]
    assert found == sorted(rows, key=lambda row: row[0])


@pytest.mark.shared
@pytest.mark.skipif(not SHARED, reason="GKEST_SHARED not set")
@pytest.mark.parametrize(("name", "requests"), [("code", 8819), ("conv", 19366)])
def test_the_public_hours(name: str, requests: int) -> None:
    """Against pandas' own reading of the same files."""
    import pandas

    path = Path(SHARED) / "data" / "traces" / f"AzureLLMInferenceTrace_2023_{name}.csv"
    times, _, lengths = whole(Trace(path))
    frame = pandas.read_csv(path)
    assert len(times) == requests == len(frame)
    stamps = pandas.to_datetime(frame["TIMESTAMP"])
    np.testing.assert_allclose(times, (stamps - stamps[0]).dt.total_seconds(), rtol=0, atol=1e-9)
    assert lengths == frame["ContextTokens"].tolist()


def test_the_docs_name_every_format_and_column() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to/traces.md").read_text(encoding="utf-8")
    for form in FORMATS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{form.name}`")]
        columns = form.shown.partition("[,Session ID]")[0]
        assert f"`{columns}`" in row
