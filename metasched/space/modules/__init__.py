"""The built-in schedule modules, one a file."""
