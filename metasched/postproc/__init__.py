"""postproc: steps that finish every candidate after its decisions, or reject it."""

from metasched.postproc.base import run_postprocs

__all__ = ["run_postprocs"]
