"""postproc: what is done to every candidate after its decisions, and what is rejected."""
