"""Arrival processes: when requests come, in chunks."""
