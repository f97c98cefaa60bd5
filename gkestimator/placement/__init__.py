"""Placing models on GPUs from their requirement tables: the problem, policies, plans and what a plan is
worth."""
