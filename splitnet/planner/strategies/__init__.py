"""Strategies: what is tried, how it is compared, and which one is chosen."""
