"""Serve requests with a length: Arlo's schedulers and its baselines."""
