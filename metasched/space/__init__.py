"""space: what may be done to a program, as modules that compose into design spaces."""
