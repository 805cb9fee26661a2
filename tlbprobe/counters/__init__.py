"""Performance counters: what they mean, whether they can be had, and reading them."""
