"""Parsers: what profilers write, as captures."""
