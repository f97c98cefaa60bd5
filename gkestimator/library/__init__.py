"""Offer what programs use: estimates, plans, exports and simulations by paths and tables in memory.

The names stand in ``gkestimator.__all__``; they are what stays.
"""
