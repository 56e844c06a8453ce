"""Records of measured candidates: trace files, the working store, and databases of users."""
