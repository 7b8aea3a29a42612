"""Measured times: of calls and links, for planning, and of a step as it ran."""
