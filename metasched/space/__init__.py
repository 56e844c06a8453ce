"""space: schedule modules, and the design spaces that they generate for a program."""
