"""What decides: plain values and mathematics, no framework."""
