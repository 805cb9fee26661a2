"""Many points: grids, curves, and parts of a fault."""
