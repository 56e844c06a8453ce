"""postproc: what is done to every candidate after its decisions, and what is rejected."""

from metasched.postproc.base import run_postprocs

__all__ = ["run_postprocs"]
