"""Executors: run the operator of a plan entry the way a runtime would."""
