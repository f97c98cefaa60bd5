"""Let a policy run again while the simulation goes on."""
