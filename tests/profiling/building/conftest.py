"""Synthetic raw folders (``benchmarks/_synthetic_raw.py``), and the profiler's own parsers and judges."""

import pytest


@pytest.fixture
def raw(tmp_path):
    """A raw folder with one chunk: a convolution of three kernels, a matrix product, an activation, on an H100."""
    from _synthetic_raw import START_NS, idle_sample, small_run

    folder = tmp_path / "run"
    small_run(folder)
    assert idle_sample(START_NS).sm_clock_mhz == 1980.0
    return folder
