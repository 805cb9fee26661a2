"""One probe a file: a function, and the record of all that is true of it alone."""
