"""Reproduce single experiments of papers; nothing here writes documentation or guards speed."""
