"""What every probe does: its record, nodes, one point in the making, slices."""
