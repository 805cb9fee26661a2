"""Memory of a page size that is controlled and proved."""
