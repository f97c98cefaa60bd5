"""The V2 inference protocol as bytes: against the bytes of Triton's own client, and every type both ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gkestimator.serving import protocol
from gkestimator.serving.backend import RefusedError, ServedSignature, ServedTensor

X = ServedTensor(name="x", datatype="FP32", shape=(2,))
Y = ServedTensor(name="y", datatype="FP32", shape=(2,))
PLAIN = ServedSignature(inputs=(X,), outputs=(Y,), max_batch=4)
# What tritonclient 2.73 sends for x = [[1, 2]] and y as bytes, recorded word by word.
RECORDED = (
    b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],'
    b'"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
    b"\x00\x00\x80?\x00\x00\x00@"
)
RECORDED_HEADER = 152


def signature(datatype: str, *shape: int | None) -> ServedSignature:
    tensors = [ServedTensor(name=name, datatype=datatype, shape=shape) for name in ("x", "y")]
    return ServedSignature(inputs=(tensors[0],), outputs=(tensors[1],), max_batch=4)


def request(**changes: Any) -> dict[str, Any]:
    """A request for one sample as JSON, ``changes`` in its input."""
    entry = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]} | changes
    return {"inputs": [{name: value for name, value in entry.items() if value is not None}]}


def parsed(document: Any, found: ServedSignature = PLAIN) -> protocol.InferRequest:
    return protocol.parse_request(json.dumps(document).encode(), None, found)


def test_the_recorded_bytes_of_tritons_client_are_understood() -> None:
    found = protocol.parse_request(RECORDED, RECORDED_HEADER, PLAIN)
    assert [sample["x"].tolist() for sample in found.samples] == [[1, 2]]
    assert found.outputs == (protocol.WantedOutput(name="y", binary=True),)
    (head, raw), length = protocol.write_response("m", found, [{"y": np.array([3, 4], np.float32)}], PLAIN)
    assert length == len(head)
    assert json.loads(head) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
        ],
    }
    assert raw == b"\x00\x00@@\x00\x00\x80@"


def test_the_recorded_bytes_are_those_that_tritons_client_sends() -> None:
    pytest.importorskip("geventhttpclient", reason="needs tritonclient[http] (extra test)")
    from tritonclient import http

    entry = http.InferInput("x", [1, 2], "FP32")
    entry.set_data_from_numpy(np.array([[1, 2]], np.float32), binary_data=True)
    wanted = [http.InferRequestedOutput("y", binary_data=True)]
    body, length = http.InferenceServerClient.generate_request_body([entry], outputs=wanted)
    assert json.loads(body[:length]) == json.loads(RECORDED[:RECORDED_HEADER])
    assert body[length:] == RECORDED[RECORDED_HEADER:]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("BOOL", np.array([[True, False, True]])),
        ("INT8", np.array([[-128, 127, 0]], np.int8)),
        ("INT64", np.array([[-(2**63), 2**63 - 1, 0]], np.int64)),
        ("UINT8", np.array([[0, 255, 1]], np.uint8)),
        ("UINT64", np.array([[0, 2**64 - 1, 1]], np.uint64)),
        ("FP16", np.array([[1.5, -2.25, 65504]], np.float16)),
        ("FP32", np.array([[0.1, -3e38, 1e-40]], np.float32)),
        ("FP64", np.array([[0.1, 1e308, -5e-324]])),
        ("BYTES", np.array([["a", "", "größer\n"]], dtype=object)),
    ],
)
def test_values_come_and_go_as_they_are(datatype: str, values: np.ndarray[Any, Any], binary: bool) -> None:
    """Each of Triton's types, by our own writing of an answer and Triton's client's reading of it."""
    pytest.importorskip("geventhttpclient", reason="needs tritonclient[http] (extra test)")
    from tritonclient import http

    entry = http.InferInput("x", list(values.shape), datatype)
    entry.set_data_from_numpy(values, binary_data=binary or datatype == "FP16")
    body, length = http.InferenceServerClient.generate_request_body(
        [entry], outputs=[http.InferRequestedOutput("y", binary_data=binary)]
    )
    found = protocol.parse_request(body, length, signature(datatype, 3))
    (sample,) = found.samples
    assert sample["x"].tolist() == values[0].tolist()
    parts, json_bytes = protocol.write_response("m", found, [{"y": sample["x"]}], signature(datatype, 3))
    read = http.InferenceServerClient.parse_response_body(b"".join(parts), header_length=json_bytes)
    answer = read.as_numpy("y").tolist()
    if datatype == "BYTES" and binary:
        answer = [[text.decode() for text in row] for row in answer]
    assert answer == values.tolist()


def test_a_request_of_several_samples_is_divided() -> None:
    found = parsed(request(shape=[3, 2], data=[[1, 2], [3, 4], [5, 6]]))
    assert [sample["x"].tolist() for sample in found.samples] == [[1, 2], [3, 4], [5, 6]]
    answers = [{"y": sample["x"] * 2} for sample in found.samples]
    (head,), length = protocol.write_response("m", found, answers, PLAIN)
    (output,) = json.loads(head)["outputs"]
    assert length is None
    assert output == {"name": "y", "datatype": "FP32", "shape": [3, 2], "data": [2, 4, 6, 8, 10, 12]}


def test_an_id_comes_back_and_a_limit_of_time_is_taken() -> None:
    found = parsed(request() | {"id": "a7", "parameters": {"timeout": 2500, "binary_data_output": True}})
    assert (found.id, found.timeout_ms, found.outputs[0].binary) == ("a7", 2.5, True)
    (head, _), _ = protocol.write_response("m", found, [{"y": np.zeros(2, np.float32)}], PLAIN)
    assert json.loads(head)["id"] == "a7"


WRONG: list[tuple[Callable[[], Any], str]] = [
    (list, "the request: expected a JSON object"),
    (dict, "inputs: expected a list of objects"),
    (lambda: {"inputs": []}, r"inputs: \['x'\] are missing"),
    (lambda: {"inputs": [1]}, "inputs: expected a list of objects"),
    (lambda: request(name="y"), r"inputs: found 'y', expected each of \['x'\] once"),
    (lambda: request(name="\x1b[2J\n"), r"inputs: found '\\x1b\[2J\\n'"),
    (lambda: request(name=7), "inputs: found 'int'"),
    (lambda: {"inputs": request()["inputs"] * 2}, "each of"),
    (lambda: request(datatype="FP64"), "input x: datatype: found 'FP64', expected FP32"),
    (lambda: request(shape=[2]), r"input x: shape: found \[2\], expected \[n, 2\]"),
    (lambda: request(shape=[1, 3]), r"found \[1, 3\], expected \[n, 2\]"),
    (lambda: request(shape=[0, 2], data=[]), r"found \[0, 2\]"),
    (lambda: request(shape=[-1, 2]), r"found \[-1, 2\]"),
    (lambda: request(shape=[True, 2]), r"found \[True, 2\]"),
    (lambda: request(shape=[1e3, 2]), "input x: shape"),
    (lambda: request(shape=[2**40, 2]), "input x: shape"),
    (lambda: request(shape=[10**200, 2]), "input x: shape"),
    (lambda: request(shape="12"), "input x: shape"),
    (lambda: request(shape=[5, 2], data=[0] * 10), "found 5 samples, expected at most 4"),
    (lambda: request(data=[1]), "input x: data: found 1 values, expected 2"),
    (lambda: request(data=[[1], [2, 3]]), "input x: data: expected a list, or lists of equal length"),
    (lambda: request(data=["a", "b"]), "input x: data: found values that are no FP32"),
    (lambda: request(data=[{}, {}]), "input x: data: found values that are no FP32"),
    (lambda: request(data=[1e39, 0]), "input x: data: found values that are no FP32"),
    (lambda: request(data=[None, 0]), "input x: data: found values that are no FP32"),
    (lambda: request(data=None), "input x: data: expected a list"),
    (lambda: request(parameters={"binary_data_size": 8}), "0 bytes are left, found 8"),
    (lambda: request(parameters={"binary_data_size": -1}), "found -1"),
    (lambda: request(parameters=[]), "input x: parameters: expected an object"),
    (lambda: request() | {"id": 1}, "id: expected a text"),
    (lambda: request() | {"id": "x" * 300}, "id: expected a text of at most 256"),
    (lambda: request() | {"parameters": {"timeout": -1}}, "timeout: expected a whole number"),
    (lambda: request() | {"outputs": [{"name": "z"}]}, r"outputs: found 'z', expected some of \['y'\]"),
    (lambda: request() | {"outputs": {"name": "y"}}, "outputs: expected a list of objects"),
]


@pytest.mark.parametrize(("made", "said"), WRONG)
def test_a_wrong_request_is_told_what_is_expected(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said) as refused:
        parsed(made())
    assert refused.value.status == 400
    assert "\n" not in refused.value.words and len(refused.value.words) <= 300


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the request is no JSON"),
        (b"{", "the request is no JSON"),
        (b"\xff\xfe", "the request is no JSON"),
        (b'{"inputs": NaN}', "found NaN"),
        (b"[" * 100_000, "the request is no JSON"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        protocol.parse_request(body, None, PLAIN)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\0" * 7, "7 bytes are left, found 8"),
        (b"\0" * 9, "the body has 1 bytes more than its inputs"),
    ],
)
def test_bytes_must_be_those_of_the_shape(raw: bytes, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        protocol.parse_request(RECORDED[:RECORDED_HEADER] + raw, RECORDED_HEADER, PLAIN)
    head = json.dumps(request(data=None, shape=[2, 2], parameters={"binary_data_size": 8})).encode()
    with pytest.raises(RefusedError, match="found 8 bytes, expected 16 of FP32 in its shape"):
        protocol.parse_request(head + b"\0" * 8, len(head), PLAIN)


def test_flags_are_zeros_and_ones() -> None:
    head = json.dumps(request(datatype="BOOL", data=None, parameters={"binary_data_size": 2})).encode()
    found = protocol.parse_request(head + b"\0\1", len(head), signature("BOOL", 2))
    assert found.samples[0]["x"].tolist() == [False, True]
    with pytest.raises(RefusedError, match="found bytes other than 0 and 1, expected BOOL"):
        protocol.parse_request(head + b"\0\2", len(head), signature("BOOL", 2))


@pytest.mark.parametrize(
    "raw", [b"", b"\1\0\0\0", b"\xff\xff\xff\xffa", b"\0\0\0\0", b"\0\0\0\0" * 3, b"\1\0\0\0\xff" * 2]
)
def test_texts_must_keep_their_lengths(raw: bytes) -> None:
    document = request(datatype="BYTES", data=None, parameters={"binary_data_size": len(raw)})
    head = json.dumps(document).encode()
    with pytest.raises(RefusedError, match="input x: "):
        protocol.parse_request(head + raw, len(head), signature("BYTES", 2))


@pytest.mark.parametrize("value", ["-1", "x", "", "1.0", "9" * 30, "12", "\u0663"])
def test_a_wrong_length_of_the_header_is_refused(value: str) -> None:
    with pytest.raises(RefusedError, match="Inference-Header-Content-Length"):
        protocol.header_length(value, 11)
    assert protocol.header_length("11", 11) == 11 and protocol.header_length(None, 11) is None


def test_values_that_json_cannot_hold_ask_for_bytes() -> None:
    with pytest.raises(RefusedError, match="ask for binary data"):
        protocol.write_response("m", parsed(request()), [{"y": np.array([np.nan, 1], np.float32)}], PLAIN)


def test_a_body_has_a_limit_that_follows_from_the_model() -> None:
    images = ServedSignature(
        inputs=(ServedTensor(name="x", datatype="FP32", shape=(3, 224, 224)),), outputs=(Y,), max_batch=2
    )
    pixels = 3 * 224 * 224
    assert protocol.body_limit(images, binary=True, most_bytes=2**30) == 2 * 4 * pixels + 65536
    assert protocol.body_limit(images, binary=False, most_bytes=2**30) == 8 * 2**20
    assert protocol.body_limit(images, binary=True, most_bytes=1000) == 1000
    assert protocol.body_limit(signature("FP32", None), binary=True, most_bytes=2**30) == 2**30
    assert protocol.body_limit(signature("BYTES", 2), binary=True, most_bytes=2**30) == 2**30


@pytest.mark.parametrize("data", [[2**64 - 1, 1.5], [2**64, 1], [2**63, -1]])
def test_whole_numbers_are_not_rounded_into_being(data: list[Any]) -> None:
    with pytest.raises(RefusedError, match="input x: data: "):
        parsed(request(datatype="UINT64", data=data), signature("UINT64", 2))
    for kind in ("INT8", "UINT8", "BOOL"):
        with pytest.raises(RefusedError, match=f"no {kind}"):
            parsed(request(datatype=kind, data=[1.5, 0]), signature(kind, 2))


def test_numbers_of_too_many_digits_are_refused() -> None:
    body = json.dumps(request()).encode().replace(b"[1, 2]", b"[" + b"9" * 5000 + b", 2]")
    with pytest.raises(RefusedError, match="no JSON"):
        protocol.parse_request(body, None, PLAIN)


@given(st.binary(max_size=400), st.none() | st.integers(0, 400))
def test_whatever_comes_is_a_request_or_refused(body: bytes, length: int | None) -> None:
    if length is not None:
        length = min(length, len(body))
    with pytest.raises(RefusedError):
        protocol.parse_request(body, length, PLAIN)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["x", "FP32"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "data", "parameters", "datatype"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON_VALUES, st.sampled_from(["name", "shape", "datatype", "data", "parameters"]))
def test_whatever_stands_in_a_field_is_taken_or_refused(value: Any, field: str) -> None:
    document = request()
    document["inputs"][0][field] = value
    try:
        found = parsed(document)
    except RefusedError as e:
        assert e.status == 400 and "\n" not in e.words
    else:
        assert all(sample["x"].shape == (2,) and sample["x"].dtype == np.float32 for sample in found.samples)


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    """JSON can write it, UTF-8 cannot: it was found when the answer was to be written, as a failure of the model."""
    whole = request(datatype="BYTES", data=["a", "\U0001f600"])
    protocol.parse_request(json.dumps(whole).encode(), None, signature("BYTES", 2))
    half = request(datatype="BYTES", data=["a", "\ud83d"])
    with pytest.raises(RefusedError, match="surrogates not allowed"):
        protocol.parse_request(json.dumps(half).encode(), None, signature("BYTES", 2))
