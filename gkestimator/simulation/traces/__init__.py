"""Readers of recorded traces, streamed."""
