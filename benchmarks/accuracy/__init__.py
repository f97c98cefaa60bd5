"""Measure how accurate the estimates are: every experiment behind docs/accuracy.md."""
