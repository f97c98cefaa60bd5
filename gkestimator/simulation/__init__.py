"""Serving simulated: a plan under arrivals, request by request; policies compared on common ground."""
