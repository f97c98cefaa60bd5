"""Bind a program to concrete shapes and list the operators that run."""
