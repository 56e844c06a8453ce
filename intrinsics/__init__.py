"""Tensor intrinsics, one file for each instruction family: descriptions and implementations."""
