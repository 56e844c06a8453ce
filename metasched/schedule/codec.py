"""Trace entries as text: versioned JSON and runnable Python. Reading executes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter
from typing import Any, TypeAlias

from metasched.arith.indexmap import IndexMap
from metasched.errors import RegistryError, TraceError, brief, clipped
from metasched.files import read_json
from metasched.ir import expr as nodes
from metasched.ir.dtype import DType
from metasched.ir.expr import BinaryOp, Cast, Expr, FloatImm, IntImm, Not, Var
from metasched.ir.visit import free_vars, substitute
from metasched.schedule import domain as domains
from metasched.schedule.handles import RV, BlockRV, ExprRV, LoopRV
from metasched.schedule.instruction import PRIMITIVES, Entry, Param, handles_in
from metasched.schedule.state import expr_rvs
from metasched.script.printer import script

SCHEMA = 1
Names: TypeAlias = "Mapping[Any, str]"
_KINDS: dict[str, Any] = {"b": BlockRV, "l": LoopRV, "v": ExprRV}


def to_json(entries: Sequence[Entry], names: Names, *, indent: int | None = None) -> str:
    """Entries as JSON text.

    Handles are written `"$l3"`, text that starts with `$` as `"$$..."`, expressions and index
    maps as nested lists under one key, non-finite floats as `{"float": "nan"}`.
    """
    steps = []
    for entry in entries:
        pairs = zip(entry.kind.params, entry.values, strict=True)
        step: dict[str, Any] = {
            "kind": entry.kind.name,
            "args": {p.name: _encode(v, names) for p, v in pairs},
            "outputs": [names[rv] for rv in entry.outputs],
        }
        if entry.kind.sampling:
            step["decision"], step["domain"] = entry.decision, entry.domain
        steps.append(step)
    return json.dumps({"schema": SCHEMA, "steps": steps}, indent=indent)


def from_json(text: str) -> tuple[Entry, ...]:
    """Read entries; TraceError says which step and field is wrong."""
    try:
        data = read_json(text)
    except (ValueError, TypeError) as error:
        raise TraceError(f"the trace is not JSON: {error}") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise TraceError('the trace has no "schema" field')
    if data["schema"] != SCHEMA:
        raise TraceError(
            f"the trace has schema {brief(data['schema'])}; this version reads {SCHEMA}"
        )
    steps = data.get("steps")
    if not isinstance(steps, list):
        raise TraceError('the trace has no list "steps"')
    handles: dict[str, RV] = {}
    return tuple([_entry(i, step, handles) for i, step in enumerate(steps)])


def _entry(position: int, step: Any, handles: dict[str, RV]) -> Entry:
    where = f"step {position}"
    if not isinstance(step, dict) or not isinstance(step.get("kind"), str):
        raise TraceError(f'{where} has no "kind"')
    try:
        kind = PRIMITIVES.get(step["kind"])
    except RegistryError as error:
        raise TraceError(f"{where}: {error}") from None
    where = f"{where} ({kind.name})"
    args, outputs = step.get("args"), step.get("outputs")
    if not isinstance(args, dict) or not isinstance(outputs, list):
        raise TraceError(f'{where} needs an object "args" and a list "outputs"')
    unknown = args.keys() - {p.name for p in kind.params}
    if unknown:
        raise TraceError(f"{where} has unknown arguments {clipped(', '.join(sorted(unknown)))}")
    values = []
    for param in kind.params:
        value = param.before
        if param.name in args:
            value = _argument(param, _decode(args[param.name], handles, where), where)
        elif value is Parameter.empty:
            raise TraceError(f"{where} misses the argument {brief(param.name)}")
        values.append(tuple(value) if param.variadic else value)
    made = []
    for name in outputs:
        if not isinstance(name, str) or name[:1] not in _KINDS or name in handles:
            raise TraceError(f"{where} has a bad or repeated output {brief(name)}")
        handles[name] = _KINDS[name[0]]()
        made.append(handles[name])
    if kind.drawn is None:
        return Entry(kind, tuple(values), tuple(made))
    domain, decision = step.get("domain"), _argument(kind.drawn, step.get("decision"), where)
    if "decision" not in step or not isinstance(domain, dict) or not domains.sound(domain):
        raise TraceError(f'{where} needs a "decision" and an object "domain" that holds it')
    return Entry(kind, tuple(values), tuple(made), decision, domain)


def _argument(param: Param, value: Any, where: str) -> Any:
    """The value read from a file; raises unless the parameter accepts it."""
    if param.variadic and not isinstance(value, list):
        raise TraceError(f"{where}: {param.name} takes a list, not {brief(value)}")
    named = value if isinstance(value, list) else [value]
    if param.block and any(isinstance(v, str) for v in named):
        raise TraceError(f"{where}: {param.name} takes blocks that earlier steps gave, not names")
    if wrong := param.misfit(value) or ("" if param.free else _too_large(value)):
        raise TraceError(f"{where}: {wrong}")
    return value


def _too_large(value: Any) -> str:
    """What is wrong with the integers in a value, which may have at most 64 bits; "" if nothing."""
    if isinstance(value, int):
        fits = -(1 << 63) <= value < 1 << 64
        return "" if fits else f"{brief(value)} is an integer of more than 64 bits"
    inside = value.values() if isinstance(value, dict) else value
    return (
        next(filter(None, map(_too_large, inside)), "") if isinstance(value, (list, dict)) else ""
    )


def _encode(value: Any, names: Names) -> Any:
    if isinstance(value, (BlockRV, LoopRV, ExprRV)):
        return f"${names[value]}"
    if isinstance(value, IndexMap):
        return {"index_map": _encode_map(value, names)}
    if isinstance(value, Expr):
        return {"expr": _encode_expr(value, {rv: f"${names[rv]}" for rv in expr_rvs(value)})}
    if isinstance(value, DType):
        return str(value)
    if isinstance(value, str):
        return f"${value}" if value.startswith("$") else value
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        return [_encode(v, names) for v in value]
    if isinstance(value, dict):
        return {"map": {k: _encode(v, names) for k, v in value.items()}}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TraceError(f"a {type(value).__name__} cannot be stored in a trace")


def _decode(value: Any, handles: dict[str, RV], where: str) -> Any:
    if isinstance(value, str):
        if value.startswith("$$"):
            return value[1:]
        return _handle(value, handles, where) if value.startswith("$") else value
    if isinstance(value, list):
        return [_decode(v, handles, where) for v in value]
    if isinstance(value, dict) and len(value) == 1:
        ((key, inner),) = value.items()
        if key == "map" and isinstance(inner, dict):
            return {k: _decode(v, handles, where) for k, v in inner.items()}
        if key == "float" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if key == "expr":
            return _decode_expr(inner, lambda name: _handle(name, handles, where), where)
        if key == "index_map":
            return _decode_map(inner, handles, where)
    if isinstance(value, dict):
        raise TraceError(f"{where} has an argument that cannot be read: {brief(value)}")
    return value


def _handle(text: str, handles: dict[str, RV], where: str) -> RV:
    try:
        return handles[text[1:]]
    except KeyError:
        raise TraceError(f"{where} uses {clipped(text[1:])}, which no earlier step gives") from None


def _encode_expr(expr: Expr, leaves: dict[Any, str]) -> Any:
    if expr in leaves:
        return leaves[expr]
    if isinstance(expr, (IntImm, FloatImm)):
        plain = expr.dtype in ("int32", "bool", "float32") and math.isfinite(expr.value)
        if plain and expr.dtype != "bool":
            return expr.value
        return ["const", str(expr.dtype), repr(expr.value)]
    if isinstance(expr, Cast):
        return ["Cast", str(expr.dtype), _encode_expr(expr.value, leaves)]
    if isinstance(expr, Var):  # a variable of the function is stored by its name
        return ["Var", str(expr.dtype), expr.name]
    if isinstance(expr, (BinaryOp, Not)):
        return [type(expr).__name__, *(_encode_expr(c, leaves) for c in expr.children)]
    raise TraceError(f"a {type(expr).__name__} cannot be stored in a trace")


def _decode_expr(data: Any, leaf: Callable[[str], Any], where: str) -> Expr:
    head = data[0] if isinstance(data, list) and data else None
    try:
        if isinstance(data, str) and data.startswith("$"):
            if isinstance(found := leaf(data), Expr):
                return found
        elif isinstance(data, (int, float)) and not isinstance(data, bool):
            return nodes.as_expr(data)
        elif head == "const":
            dtype = DType(data[1])
            return (
                FloatImm(dtype, float(data[2])) if dtype.is_float else IntImm(dtype, int(data[2]))
            )
        elif head == "Var" and str(data[2]).isidentifier():
            return _function_var(data[2], DType(data[1]))
        elif head == "Cast":
            return Cast(data[1], _decode_expr(data[2], leaf, where))
        elif isinstance(head, str) and (cls := _operation(head)) is not None:
            return cls(*(_decode_expr(d, leaf, where) for d in data[1:]))
    except (AttributeError, IndexError, TypeError, ValueError, OverflowError):
        pass  # the data are no expression: the error below names the place
    raise TraceError(f"{where} has an expression that cannot be read: {brief(data)}")


def _operation(name: str) -> type[BinaryOp | Not] | None:
    cls = getattr(nodes, name, None)
    return cls if isinstance(cls, type) and issubclass(cls, (BinaryOp, Not)) else None


def _encode_map(index_map: IndexMap, names: Names) -> dict[str, Any]:
    """Inputs of int32 are written as their names, others as variables with their types."""
    leaves: dict[Any, str] = {rv: f"${names[rv]}" for rv in handles_in(index_map)}
    leaves |= {v: f"${i}" for i, v in enumerate(index_map.inputs)}
    data: dict[str, Any] = {
        "inputs": [v.name if v.dtype == "int32" else _encode_expr(v, {}) for v in index_map.inputs],
        "outputs": [_encode_expr(e, leaves) for e in index_map.outputs],
    }
    if index_map.inverse_map is not None:
        data["inverse"] = _encode_map(index_map.inverse_map, names)
    return data


def _decode_map(data: Any, handles: dict[str, RV], where: str) -> IndexMap:
    try:
        inputs = _index_vars(*map(_named, data["inputs"]))
        found: dict[str, Any] = {str(i): v for i, v in enumerate(inputs)} | handles
        read = lambda text: _handle(text, found, where)  # noqa: E731
        outputs = tuple(_decode_expr(d, read, where) for d in data["outputs"])
        back = _decode_map(data["inverse"], handles, where) if "inverse" in data else None
        return IndexMap(inputs, outputs, back)
    except (KeyError, TypeError, ValueError, IndexError):
        raise TraceError(f"{where} has an index map that cannot be read: {brief(data)}") from None


@lru_cache(maxsize=1 << 9)
def _function_var(name: str, dtype: DType) -> Var:
    """A variable of the function that a trace is applied to."""
    return Var(name, dtype)


def _named(data: Any) -> tuple[str, DType]:
    """The name and type of an input of an index map."""
    if isinstance(data, str):
        return data, DType("int32")
    head, kind, name = data
    if head != "Var" or not DType(kind).is_int or not isinstance(name, str):
        raise ValueError(f"{data} is no input of an index map")
    return name, DType(kind)


@lru_cache(maxsize=1 << 9)
def _index_vars(*inputs: tuple[str, DType]) -> tuple[Var, ...]:
    """The inputs of a map that is read from a file.

    Equal maps get the same variables, so that they share cached analysis results.
    """
    return tuple(Var(name, dtype) for name, dtype in inputs)


def as_python(entries: Sequence[Entry], names: Names) -> str:
    """One call a line, arguments by keyword except variadic ones, decisions included."""
    lines = []
    variables = _function_vars(entries, names)
    names = {**names, **variables}
    for entry in entries:
        args: list[str] = []
        variadic = any(p.variadic for p in entry.kind.params)
        for param, value in zip(entry.kind.params, entry.values, strict=True):
            if param.variadic:
                args[:0] = [_python(v, names) for v in value]
            elif not (variadic and value == param.default):
                args.append(f"{param.name}={_python(value, names)}")
        if entry.kind.sampling:
            args.append(f"decision={_python(entry.decision, names)}")
        call = f"sch.{entry.kind.name}({', '.join(args)})"
        out = ", ".join(names[rv] for rv in entry.outputs)
        if len(entry.outputs) == 1 and entry.kind.many:
            out += ","
        lines.append(f"    {out} = {call}" if out else f"    {call}")
    defined = {f'    {text} = T.Var("{v.name}", "{v.dtype}")' for v, text in variables.items()}
    lines[:0] = sorted(defined)
    if any(f"{before}T." in line for line in lines for before in " (="):
        lines.insert(0, "    from metasched.script import tir as T")
    if any("IndexMap.of(" in line for line in lines):
        lines.insert(0, "    from metasched import IndexMap")
    body = "\n".join(lines) if lines else "    pass"
    return f"def apply_trace(sch):\n{body}\n"


def _foreign(value: Any) -> Iterator[Var]:
    """The variables of the function that an argument mentions."""
    if isinstance(value, IndexMap):
        yield from (v for e in value.outputs for v in _foreign(e) if v not in value.inputs)
    elif isinstance(value, Expr):
        yield from (v for v in free_vars(value) if not isinstance(v, (BlockRV, LoopRV, ExprRV)))
    elif isinstance(value, (list, tuple)):
        yield from (v for item in value for v in _foreign(item))
    elif isinstance(value, dict):
        yield from (v for item in value.values() for v in _foreign(item))


def _function_vars(entries: Sequence[Entry], names: Names) -> dict[Any, str]:
    """The variables of the function that steps mention, and what they are called in Python."""
    found: dict[Any, str] = {}
    taken = dict.fromkeys(names.values(), "")
    for entry in entries:
        for var in _foreign(entry.values):
            text = var.name
            while taken.setdefault(text, f"{var.name}: {var.dtype}") != f"{var.name}: {var.dtype}":
                text += "_"
            found[var] = text
    return found


def _python(value: Any, names: Names) -> str:
    if isinstance(value, (BlockRV, LoopRV, ExprRV)):
        return names[value]
    if isinstance(value, IndexMap):
        return _python_map(value, names)
    # Python has no operator that builds this node
    if isinstance(value, (nodes.EQ, nodes.NE, nodes.And, nodes.Or, Not)):
        return f"T.{type(value).__name__}({', '.join(_python(c, names) for c in value.children)})"
    if isinstance(value, Expr):
        known = [v for v in free_vars(value) if v in names]
        called: dict[Var, Expr] = {v: Var(names[v], v.dtype) for v in known}
        return script(substitute(value, called))
    if isinstance(value, str):
        return json.dumps(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_python(v, names) for v in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)}: {_python(v, names)}' for k, v in value.items())}}}"
    return repr(value)


def _python_map(index_map: IndexMap, names: Names) -> str:
    """A function of the inputs, or a call of `IndexMap.of` where they are not of type int32 or the
    map has a known inverse."""
    taken = {names.get(v, v.name) for v in _foreign(index_map)}
    kind = max((v.dtype for v in index_map.inputs), key=lambda t: t.bits, default=DType("int32"))
    inputs = [Var(f"{v.name}_" if v.name in taken else v.name, kind) for v in index_map.inputs]
    outputs = index_map.apply(inputs)
    shown = ", ".join(_python(e, names) for e in outputs)
    comma = "," if len(outputs) == 1 else ""
    text = f"lambda {', '.join(v.name for v in inputs)}: ({shown}{comma})"
    more = "" if kind == "int32" else f', index_dtype="{kind}"'
    if index_map.inverse_map is not None:
        more += f", inverse={_python_map(index_map.inverse_map, names)}"
    return f"IndexMap.of({text}{more})" if more else text
