"""The passes of the lowering, one idea a file; `lower.cpu` has their order for CPUs."""
