"""The core that measures: this machine's own, or a simulated one whose hierarchy is given."""
