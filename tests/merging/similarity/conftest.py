"""The oracle and the cases are modules beside the tests."""

from __future__ import annotations
