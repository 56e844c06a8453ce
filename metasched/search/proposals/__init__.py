"""proposals: where the candidates of an evolutionary search come from, one source a file."""
