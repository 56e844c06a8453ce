"""Representative sizes: a number for each extent that is known at run time only.

The attribute `SIZES` of a function maps the names of its run-time extents to the numbers at which
the program is tuned. A number changes nothing that the program computes. It decides which tiles are
drawn, at which size candidates are timed, and what the cost model sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metasched.arith.analyzer import Analyzer
from metasched.arith.specialize import with_constants
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, Var, as_expr, as_int
from metasched.ir.func import SIZES, IRModule, PrimFunc
from metasched.ir.stmt import FrozenMap
from metasched.ir.visit import free_vars, substitute

Values = Mapping[Var, Expr]


def run_time_extents(func: PrimFunc) -> tuple[Var, ...]:
    """The variables in the shapes and strides of a function's parameters, in order."""
    return _bound_by(func.params)


def with_sizes(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The function with representative sizes, by the names of its run-time extents.

    Sizes that the function has already stay where `sizes` does not name them. Strides need no
    numbers: see `with_strides`.

    Raises MetaschedError for a name that is no run-time extent, a number below 1, an extent
    without a number, or a stride with which elements share an address.
    """
    return with_sizes_each({"": func}, sizes)[""]


def with_sizes_each(funcs: Mapping[str, PrimFunc], sizes: Mapping[str, int]) -> dict[str, PrimFunc]:
    """Functions by name, each with the representative sizes of its own run-time extents; raises as
    `with_sizes` does."""
    own = {name: [v.name for v in run_time_extents(func)] for name, func in funcs.items()}
    names = dict.fromkeys(each for extents in own.values() for each in extents)
    known = ", ".join(names) or "none"
    if not isinstance(sizes, Mapping):
        raise MetaschedError(f"sizes are numbers by the names of extents ({known}), not {sizes!r}")
    for name, value in sizes.items():
        if name not in names:
            raise MetaschedError(f"sizes name {name!r}; the run-time extents are: {known}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise MetaschedError(
                f"the size of {name!r} is {value!r}; it must be an integer above 0"
            )
    return {name: _sized(name, func, own[name], sizes) for name, func in funcs.items()}


def with_strides(func: PrimFunc, sizes: Mapping[str, int], gap: int = 0) -> dict[str, int]:
    """The sizes, with a number for each run-time stride that they do not name.

    A stride is a variable that is no extent. It gets the smallest number with which no two elements
    of a parameter share an address.

    Args:
        func: the function.
        sizes: numbers by the names of run-time extents.
        gap: elements that are left free beside a row.
    """
    strides = run_time_strides(func)
    known = {v: as_expr(sizes[v.name], v.dtype) for v in run_time_extents(func) if v.name in sizes}
    for _ in strides:
        for buffer in func.buffers:
            known |= _compact(buffer, known, strides.difference(sizes), gap)
    added = {v.name: as_int(known[v]) for v in known if v.name not in sizes}
    return {**sizes, **{name: value for name, value in added.items() if value is not None}}


def run_time_strides(func: PrimFunc) -> frozenset[str]:
    """The names of the variables in the strides of a function's parameters that are no extents."""
    extents = {v for b in func.buffers for e in b.shape for v in free_vars(e)}
    return frozenset(v.name for v in run_time_extents(func) if v not in extents)


def _compact(buffer: Buffer, known: Values, strides: frozenset[str], gap: int) -> Values:
    """A number for each stride of a buffer that has none, or one too small; `strides`: names of the
    variables that may change."""
    found: dict[Var, Expr] = {}
    free, row = [], 1
    for stride, extent in zip(buffer.strides, buffer.shape, strict=False):
        count = size_of(extent, known)
        if count is None:
            return {}
        if isinstance(stride, Var) and stride.name in strides:
            free.append((stride, count))
        else:
            row = max(row, (size_of(stride, known) or 1) * count)
    for stride, count in reversed(free):
        least = max(row if row == 1 else row + gap, size_of(stride, {**known, **found}) or 1)
        found[stride], row = as_expr(least, stride.dtype), least * count
    return found


def _sized(label: str, func: PrimFunc, names: list[str], sizes: Mapping[str, int]) -> PrimFunc:
    whole = with_strides(func, {**func.attrs.get(SIZES, {}), **sizes})
    lacking = without_size(func, whole)
    if lacking:
        several = len(lacking) > 1
        raise MetaschedError(
            f"{label}{label and ': '}the {'extents' if several else 'extent'} {', '.join(lacking)} "
            f"{'are' if several else 'is'} known at run time only, and there is no size to tune "
            f"at: {how_to_name(lacking)}"
        )
    if not names:
        return func
    sized = func.with_attr(SIZES, {name: whole[name] for name in names})
    for given, buffer in zip(func.buffers, at_sizes(sized).buffers, strict=True):
        if any(as_int(stride) is None for stride in given.strides):
            _require_apart(label, buffer)
    return sized


def without_size(func: PrimFunc, sizes: Mapping[str, int]) -> list[str]:
    """The run-time extents without a size; strides follow from them (see `with_strides`)."""
    lacking = [v.name for v in run_time_extents(func) if v.name not in sizes]
    strides = run_time_strides(func)
    return [name for name in lacking if name not in strides] or lacking


def _require_apart(label: str, buffer: Buffer) -> None:
    """Refuse a parameter whose elements may share an address."""
    pairs = zip(buffer.strides, buffer.shape, strict=False)
    steps = sorted((as_int(s) or 0, as_int(n) or 0) for s, n in pairs if as_int(n) != 1)
    reach = 1
    for stride, count in steps:
        if stride < reach:
            raise MetaschedError(
                f"{label}{label and ': '}with these sizes, elements of {buffer.name} may share an "
                f"address: a stride is {stride}, and at least {reach} keeps them apart"
            )
        reach += (count - 1) * stride


def how_to_name(extents: Sequence[str]) -> str:
    """The end of a message: how to give extents without a representative size one."""
    options = " ".join(f"--size {name}=1024" for name in extents)
    return f"name each by sizes={dict.fromkeys(extents, 1024)}, or on the command line by {options}"


def sizes_of(source: PrimFunc | IRModule) -> Values:
    """The representative sizes of a program, by variables; empty without the attribute."""
    funcs = source.functions.values() if isinstance(source, IRModule) else [source]
    found: dict[Var, Expr] = {}
    for func in funcs:
        if SIZES in func.attrs:
            given = func.attrs[SIZES]
            extents = _bound_by(func.params)
            found.update({v: as_expr(given[v.name], v.dtype) for v in extents if v.name in given})
    return found


def _bound_by(params: Sequence[Buffer | Var]) -> tuple[Var, ...]:
    extents = (e for p in params if isinstance(p, Buffer) for e in (*p.shape, *p.strides))
    found = (v for e in extents for v in sorted(free_vars(e), key=lambda v: v.name))
    return tuple(dict.fromkeys(found))


def size_of(extent: Expr, sizes: Values) -> int | None:
    """An extent as a number, with representative sizes; None if it depends on other variables."""
    number = as_int(extent)
    if number is not None or not sizes:
        return number
    return as_int(Analyzer().simplify(substitute(extent, sizes)))


def at_sizes(func: PrimFunc, sizes: Values | None = None) -> PrimFunc:
    """The function for one size of each run-time extent: its representative sizes, or `sizes`."""
    values = sizes_of(func) if sizes is None else sizes
    if not values:
        return func
    made = with_constants(func, values)
    attrs = FrozenMap({key: value for key, value in func.attrs.items() if key != SIZES})
    return PrimFunc(made.params, made.body, attrs, func.ret_type)


def module_at_sizes(mod: IRModule) -> IRModule:
    """The module with each function at its representative sizes."""
    if not any(SIZES in func.attrs for func in mod.functions.values()):
        return mod
    functions = {name: at_sizes(func) for name, func in mod.functions.items()}
    return IRModule(FrozenMap(functions), mod.attrs)
