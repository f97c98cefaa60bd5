"""Describe hardware: GPU specifications, runtimes and hosts, each figure with its source."""
