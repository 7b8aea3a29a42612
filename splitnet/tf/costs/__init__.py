"""What one call costs, by a formula per kind of layer; begin at `call_cost`."""
