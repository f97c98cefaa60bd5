"""Serve a plan for real, on Ray: a controller that plans again, a router with a door for HTTP, workers that batch
late."""
