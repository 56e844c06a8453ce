"""Facts about blocks and loops: scopes, block kinds, accesses, reducers."""
