"""The passes of the lowering, one idea a file; the order is in `lower.pipeline`."""
