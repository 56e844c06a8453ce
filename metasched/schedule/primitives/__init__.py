"""One schedule primitive (or family) a file."""
