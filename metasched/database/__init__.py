"""Records of what was measured: trace files and the working store."""
