"""Load the program of a command: a workload by name with a shape, or FILE.py:NAME."""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metasched import config, workloads
from metasched.analysis.sizes import with_sizes_each
from metasched.errors import MetaschedError, TypeMismatchError, brief, clipped
from metasched.foreign import run_file
from metasched.ir.func import IRModule, PrimFunc
from metasched.registry import load_plugin
from metasched.target import Target

CONSTANT = "the weights are the same in every call: they are packed ahead of time"


@dataclass(frozen=True)
class Program:
    """A function and its origin.

    Attributes:
        name: for reports and files.
        workload, shape: the suite's operator, or None for a user's file.
    """

    name: str
    func: PrimFunc
    workload: str | None = None
    shape: tuple[int, ...] | None = None


def add_source(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that name a program."""
    parser.add_argument(
        "program", help="a workload (gmm, c2d, ...), FILE.py:FUNCTION or FILE.py:MODULE.FUNCTION"
    )
    parser.add_argument("--shape", help="numbers separated by commas, for a workload")
    parser.add_argument("--constant-weights", action="store_true", help=CONSTANT)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that name the machine, and plug-in files that may declare it."""
    parser.add_argument(
        "--target", help="native (default), a tag, or features; see `metasched targets`"
    )
    add_plugin(parser)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that names plug-in files, for commands without a target as well."""
    parser.add_argument(
        "--plugin", metavar="FILE.py", action="append",
        help="plug-in file, which is run first; may be repeated",
    )  # fmt: skip


def add_size(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that gives representative sizes of run-time extents."""
    parser.add_argument(
        "--size", metavar="NAME=NUMBER", action="append", default=[],
        help="representative size of an extent that is known at run time only; may be repeated",
    )  # fmt: skip


def sizes_given(arguments: argparse.Namespace) -> dict[str, int]:
    """The sizes that `--size` gives, by names of extents; raises MetaschedError for a text that is
    not NAME=NUMBER."""
    sizes: dict[str, int] = {}
    for text in arguments.size:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal():
            raise MetaschedError(f"--size is {text!r}; it must be NAME=NUMBER, such as n=1024")
        sizes[name] = int(number)
    return sizes


def add_data(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that names a file of given data."""
    parser.add_argument(
        "--data", metavar="FILE.npz",
        help="arrays and numbers by the names of parameters, with which candidates are timed",
    )  # fmt: skip


def data_given(
    arguments: argparse.Namespace, funcs: Mapping[str, PrimFunc]
) -> dict[str, dict[str, Any]] | None:
    """The data of `--data` for each function that has parameters of these names; raises
    MetaschedError for a file that is not read, or a name that no function has."""
    if arguments.data is None:
        return None
    try:
        file = np.load(arguments.data, allow_pickle=False)
        data = {name: file[name] for name in getattr(file, "files", ())}
    except OSError as error:
        raise MetaschedError(f"--data {arguments.data} cannot be read: {error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile):
        reason = "it is no file of numpy.savez"
        if zipfile.is_zipfile(arguments.data):
            reason = "it holds Python objects, or it is damaged; numbers alone are read"
        raise MetaschedError(f"--data {arguments.data} cannot be read: {reason}") from None
    if not data:
        raise MetaschedError(
            f"--data {arguments.data} holds no named arrays; numpy.savez(file, NAME=array) writes "
            "such a file"
        )
    names = {key: {param.name for param in func.params} for key, func in funcs.items()}
    if unknown := data.keys() - set().union(*names.values()):
        known = ", ".join(sorted(set().union(*names.values())))
        raise MetaschedError(
            f"--data names {', '.join(sorted(unknown))}; the parameters are: {known}"
        )
    found = {key: {n: v for n, v in data.items() if n in own} for key, own in names.items()}
    return {key: values for key, values in found.items() if values}


def load_sized(arguments: argparse.Namespace) -> list[Program]:
    """The programs that the arguments name, with the sizes of `--size`; raises MetaschedError for
    a size that none of them has, or when only some of the run-time extents have one."""
    programs = load_all(arguments.program, arguments.shape, arguments.constant_weights)
    sizes = sizes_given(arguments)
    if not sizes:
        return programs
    funcs = with_sizes_each({program.name: program.func for program in programs}, sizes)
    return [replace(program, func=funcs[program.name]) for program in programs]


def run_plugins(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Run the plug-in files that `--plugin` or the settings name; returns their paths."""
    files: tuple[str, ...] = config.load(plugins=arguments.plugin).plugins
    for file in files:
        load_plugin(file)
    return files


def target_of(arguments: argparse.Namespace, *, anywhere: bool = False) -> Target:
    """The machine that `--target` or the settings name, after the plug-in files were run.

    Raises TargetError unless its code runs here, or the command needs no machine (`anywhere`).
    """
    run_plugins(arguments)
    target = Target.of(config.load(target=arguments.target).target)
    if not anywhere:
        target.require_here()
    return target


def load(text: str, shape: str | None, constant_weights: bool = False) -> Program:
    """The program that the arguments name; raises MetaschedError for wrong arguments."""
    if is_file(text):
        _refuse_options(shape, constant_weights)
        return _chosen(*_found(text))
    dims = shape_of(text, shape)
    try:
        func = workloads.get(text).func(dims, constant_weights)
    except ValueError as error:
        raise MetaschedError(f"--constant-weights: {error}") from None
    return Program(text, func, text, dims)


def shape_of(workload: str, text: str | None) -> tuple[int, ...]:
    """The shape that `--shape` gives, or the workload's first usual shape; checked by building the
    workload once."""
    work = workloads.get(workload)
    try:
        numbers = None if text is None else tuple(int(v) for v in text.split(","))
    except ValueError:
        raise MetaschedError(f"--shape {text}: not integers separated by commas") from None
    try:
        dims: tuple[int, ...] = work.shape_of(numbers)
        work.func(dims)
    except (ValueError, TypeMismatchError) as error:
        raise MetaschedError(f"--shape {text}: {error}") from None
    return dims


def load_all(text: str, shape: str | None, constant_weights: bool = False) -> list[Program]:
    """The programs that the arguments name: a module of a file may hold several."""
    if not is_file(text):
        return [load(text, shape, constant_weights)]
    _refuse_options(shape, constant_weights)
    place, name, found = _found(text)
    chosen = found.get(name)
    if isinstance(chosen, IRModule) and len(chosen) > 1:
        return [Program(f"{name}.{each}", chosen[each]) for each in chosen]
    return [_chosen(place, name, found)]


def is_file(text: str) -> bool:
    """Whether a program is named by its file, not by the name of a workload."""
    return ":" in text or text.endswith(".py")


def _refuse_options(shape: str | None, constant_weights: bool) -> None:
    if constant_weights:
        raise MetaschedError(
            "--constant-weights is for workloads; a function of a file marks its own by "
            'T.func_attr({"layout_free_buffers": [positions]})'
        )
    if shape is not None:
        raise MetaschedError("--shape is for workloads; a function of a file has its own")


def _found(text: str) -> tuple[str, str, dict[str, PrimFunc | IRModule]]:
    """Split `FILE.py:NAME` and run the file: gives the file, the name, and the file's functions and
    modules by name. The file may import modules that stand beside it."""
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    try:
        there = Path(place).is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise MetaschedError(f"the file {clipped(place)} does not exist")
    folder = str(Path(place).resolve().parent)
    sys.path.insert(0, folder)  # as `python FILE.py` does
    try:
        module = run_file(place, f"metasched_user_{Path(place).stem}", "file")
    finally:
        sys.path.remove(folder)
    top = {k: v for k, v in vars(module).items() if isinstance(v, PrimFunc | IRModule)}
    if not name and len(top) == 1:
        name = next(iter(top))
    inner = {f"{k}.{n}": f for k, m in top.items() if isinstance(m, IRModule) for n, f in m.items()}
    return place, name, {**top, **inner}


def _chosen(place: str, name: str, found: dict[str, PrimFunc | IRModule]) -> Program:
    """The function called `name`, or the only function of a module called `name`."""
    chosen = found.get(name)
    if isinstance(chosen, IRModule) and len(chosen) == 1:
        chosen = next(iter(chosen.values()))
    if not isinstance(chosen, PrimFunc):
        known = ", ".join(n for n, f in found.items() if isinstance(f, PrimFunc)) or "none"
        lack = f"has no function {brief(name)}" if name else "needs a function's name after a colon"
        raise MetaschedError(f"{place} {lack}; prim_funcs in it: {known}")
    return Program(name, chosen)
