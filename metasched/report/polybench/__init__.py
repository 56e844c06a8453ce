"""The kernels of PolyBench in other libraries, for comparison; arrays are overwritten in place."""
