"""The compiled search: one problem, one engine, several objectives (`solve.py`).

numba is imported when a problem is too large for branch and bound.
"""
