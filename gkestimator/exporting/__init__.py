"""Requirement tables and plans for the schedulers that people run: one file per target."""
