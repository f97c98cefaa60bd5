"""Checks of relations that hold between estimates whatever the true values are: ``gkest doctor --bundle``."""
