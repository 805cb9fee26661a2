"""What this machine is: its files, pages, limits, facts, and what could spoil a measurement on it."""
