"""A policy that runs again while the simulation goes on."""
