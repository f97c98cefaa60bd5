"""Simulate serving: a plan under arrivals, request by request; policies compared on common ground."""
