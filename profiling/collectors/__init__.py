"""Collectors: put a profiler around an executor's child, and see to it that it really recorded."""
