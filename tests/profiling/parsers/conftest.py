"""The helpers of these tests are modules beside this file."""

from __future__ import annotations
