"""What tests of several rooms of profiling share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process grows beyond a few bytes: writing fails as on a full disk (Python ignores the signal)."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
