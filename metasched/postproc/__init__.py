"""postproc: what is done to every candidate after its decisions, and what is rejected."""

from metasched.postproc.base import POSTPROCS, Postproc, default_postprocs, run_postprocs
from metasched.postproc.cpu import cpu_postprocs

__all__ = ["POSTPROCS", "Postproc", "cpu_postprocs", "default_postprocs", "run_postprocs"]
