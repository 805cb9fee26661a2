"""The levels of a TLB: measured, inferred, and simulated."""
