"""Sweep planning: what to measure, and how long it will take."""
