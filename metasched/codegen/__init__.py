"""codegen: turns lowered functions into LLVM text, object files and loaded code."""
