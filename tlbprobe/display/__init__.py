"""Pictures, tables and the command line."""
