"""Somebody else's program: watched, and tried with other pages."""
