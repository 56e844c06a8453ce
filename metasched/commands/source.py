"""What a command works on: a workload by name with a shape, or FILE.py:FUNCTION."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from metasched import config, workloads
from metasched.errors import MetaschedError
from metasched.ir.func import IRModule, PrimFunc
from metasched.target import Target

CONSTANT = "the weights are the same in every call: they are packed ahead of time"


@dataclass(frozen=True)
class Program:
    """A function with where it came from.

    Attributes:
        name: for reports and files.
        workload, shape: the suite's operator, or None for a user's file.
    """

    name: str
    func: PrimFunc
    workload: str | None = None
    shape: tuple[int, ...] | None = None


def add_source(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a program."""
    parser.add_argument("program", help="a workload (gmm, c2d, ...) or FILE.py:FUNCTION")
    parser.add_argument("--shape", help="numbers separated by commas, for a workload")
    parser.add_argument("--constant-weights", action="store_true", help=CONSTANT)


def add_target(parser: argparse.ArgumentParser) -> None:
    """The argument that names the machine."""
    parser.add_argument(
        "--target", help="native (default), a tag, or features; see `metasched targets`"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    """The machine that `--target` or the settings name; TargetError unless its code runs here."""
    target = Target.of(config.load(target=arguments.target).target)
    target.require_here()
    return target


def load(text: str, shape: str | None, constant_weights: bool = False) -> Program:
    """The program that the arguments name; MetaschedError says what is wrong with them."""
    if ":" in text or text.endswith(".py"):
        if constant_weights:
            raise MetaschedError(
                "--constant-weights is for workloads; a function of a file marks its own by "
                'T.func_attr({"layout_free_buffers": [positions]})'
            )
        return _from_file(text, shape)
    dims = shape_of(text, shape)
    try:
        func = workloads.get(text).func(dims, constant_weights)
    except ValueError as error:
        raise MetaschedError(f"--constant-weights: {error}") from None
    return Program(text, func, text, dims)


def shape_of(workload: str, text: str | None) -> tuple[int, ...]:
    """The shape that `--shape` gives a workload, its first usual one without; builds it once."""
    work = workloads.get(workload)
    try:
        numbers = None if text is None else tuple(int(v) for v in text.split(","))
    except ValueError:
        raise MetaschedError(f"--shape {text}: not integers separated by commas") from None
    try:
        dims: tuple[int, ...] = work.shape_of(numbers)
        work.func(dims)
    except ValueError as error:
        raise MetaschedError(f"--shape {text}: {error}") from None
    return dims


def _from_file(text: str, shape: str | None) -> Program:
    if shape is not None:
        raise MetaschedError("--shape is for workloads; a function of a file has its own")
    place, _, name = text.partition(":")
    path = Path(place)
    if not path.is_file():
        raise MetaschedError(f"there is no file {place}")
    spec = importlib.util.spec_from_file_location(f"metasched_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MetaschedError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except MetaschedError:
        raise
    except (Exception, SystemExit) as error:  # the user's file: anything may happen in it
        raise MetaschedError(f"{place} raised {type(error).__name__}: {error}") from error
    found = {k: v for k, v in vars(module).items() if isinstance(v, PrimFunc | IRModule)}
    if not name and len(found) == 1:
        name = next(iter(found))
    chosen = found.get(name)
    if isinstance(chosen, IRModule) and len(chosen) == 1:
        chosen = next(iter(chosen.values()))
    if not isinstance(chosen, PrimFunc):
        known = ", ".join(found) or "none"
        raise MetaschedError(f"{place} has no function {name!r}; prim_funcs in it: {known}")
    return Program(name, chosen)
