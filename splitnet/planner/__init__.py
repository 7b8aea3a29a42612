"""From constraints to a placement: search, bounds, analysis, plan files."""
