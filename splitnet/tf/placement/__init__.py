"""Placement: each part of a plan as a function on its device."""
