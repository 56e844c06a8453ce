"""Tensor intrinsics: one file for each instruction family, a description and an implementation each."""
