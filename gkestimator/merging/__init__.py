"""Merge the operator graphs of models that share a GPU and weights (USHER, OSDI 2024, section 3.4:
OG-Merger).
"""
