"""Operators between two super-operators that are alike run once, on the concatenated value."""
