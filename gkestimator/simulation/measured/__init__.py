"""Hold real servers beside simulated ones: their logs, what they add to the model's own time, and both compared."""
