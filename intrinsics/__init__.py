"""Tensor intrinsics: one file for each instruction family, description and implementation each."""
