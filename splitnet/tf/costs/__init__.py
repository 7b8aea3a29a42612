"""What one call costs, a formula per kind of layer; the front door is tf/flops.py."""
