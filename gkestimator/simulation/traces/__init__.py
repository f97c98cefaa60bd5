"""Read recorded traces, streamed."""
