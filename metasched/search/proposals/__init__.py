"""proposals: the sources of the candidates of an evolutionary search, one source a file."""
