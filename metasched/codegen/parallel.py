"""Parallel loops: the body becomes a function of its own that a team of OpenMP threads runs.

The team has at most as many threads as the target has cores. Each thread takes one contiguous share
of the iterations; the shares depend on the size of the team at run time. Pointers are passed in a
closure, then as `noalias` arguments of an inner function: a pointer loaded from memory cannot be
`noalias`. A parallel loop inside another parallel loop runs serially.
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.codegen.emit import Emitter
from metasched.codegen.values import Val
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import HANDLE, INT64
from metasched.ir.expr import Expr, Var
from metasched.ir.stmt import Allocate, BufferStore, DeclBuffer, For
from metasched.ir.visit import stmt_vars, walk

Serial = Callable[[Emitter, For, Val, Val], None]


def emit_parallel(e: Emitter, node: For, extent: Val, serial_loop: Serial) -> None:
    """Write the functions of the body and call the team here."""
    variables, pointers = _captured(e, node)
    name = e.module.fresh_function(f"{e.name}.parallel")
    _body_function(e, name, node, variables, pointers, extent, serial_loop)
    values = [*pointers.values(), *variables.values(), extent]
    _entry_function(e, name, values)
    slots = len(values) + 1
    closure = e.fresh("closure")
    e.allocas.append(f"{closure} = alloca [{slots} x i64], align 16")
    e.line(f"store i32 0, ptr {closure}")
    for i, value in enumerate(values, 1):
        slot = e.fresh()
        e.line(f"{slot} = getelementptr i64, ptr {closure}, i64 {i}")
        e.line(f"store {value.typed}, ptr {slot}")
    e.module.declare("GOMP_parallel", "void @GOMP_parallel(ptr, ptr, i32, i32)", "nounwind")
    e.module.externs.add("GOMP_parallel")
    team = _team(e)
    e.line(f"call void @GOMP_parallel(ptr @{name}.entry, ptr {closure}, i32 {team}, i32 0)")
    code = e.fresh()
    e.line(f"{code} = load i32, ptr {closure}")
    failed, bad, good = e.fresh(), e.fresh_label("failed"), e.fresh_label("joined")
    e.line(f"{failed} = icmp ne i32 {code}, 0")
    e.line(f"br i1 {failed}, label %{bad}, label %{good}")
    e.label(bad)
    e.line(f"store i32 {code}, ptr %rc")
    e.branch("exit")
    e.label(good)


def _team(e: Emitter) -> str:
    """How many threads to ask for: the limit set by the user, at most the cores of the target."""
    e.module.declare("omp_get_max_threads", "i32 @omp_get_max_threads()", "nounwind")
    e.module.externs.add("omp_get_max_threads")
    most, more, team = e.fresh("most"), e.fresh("more"), e.fresh("team")
    cores = e.module.cores
    e.line(f"{most} = call i32 @omp_get_max_threads()")
    e.line(f"{more} = icmp sgt i32 {most}, {cores}")
    e.line(f"{team} = select i1 {more}, i32 {cores}, i32 {most}")
    return team


def _captured(e: Emitter, node: For) -> tuple[dict[Expr, Val], dict[Var, Val]]:
    """Variables with run-time values and data pointers that the body uses from outside."""
    variables: dict[Expr, Val] = {}
    for var in sorted(stmt_vars(node.body), key=lambda v: (v.name, v.serial)):
        value = e.env.get(var)
        if value is not None and value.const is None and var is not node.var:
            variables[var] = value
    pointers: dict[Var, Val] = {}
    inner: set[Var] = set()
    for item in walk(node.body):
        if isinstance(item, Allocate):
            inner.add(item.buffer.data)
        elif isinstance(item, DeclBuffer):
            data = item.source.data
            if data in e.pointers:
                pointers.setdefault(data, e.pointers[data])
        elif isinstance(item, (BufferLoad, BufferStore)):
            data = item.buffer.data
            if data in e.pointers and data not in inner:
                pointers.setdefault(data, e.pointers[data])
        elif isinstance(item, Var) and item.dtype.is_handle and item in e.pointers:
            pointers.setdefault(item, e.pointers[item])
    return variables, pointers


def _body_function(
    e: Emitter, name: str, node: For, variables: dict[Expr, Val], pointers: dict[Var, Val],
    extent: Val, serial_loop: Serial,
) -> None:  # fmt: skip
    """`i32 NAME.body(pointers, variables, begin, end)`: iterations begin ... end - 1."""
    inner = Emitter(e.module, name, serial=True, liberties=e.liberties)
    inner.unroll_steps = e.unroll_steps
    inner.elements = dict(e.elements)
    for var, value in e.env.items():
        if value.const is not None:
            inner.env[var] = value
    parameters = []
    shared: dict[str, Val] = {}
    for data, outer in pointers.items():
        known = shared.get(outer.text)
        if known is None:
            known = shared[outer.text] = Val(f"%p{len(shared)}", HANDLE, 1, 0)
            parameters.append(f"ptr noalias {known.text}")
        else:
            parameters.append(f"ptr %same{len(parameters)}")
        inner.pointers[data] = known
    for i, (var, outer) in enumerate(variables.items()):
        value = Val(f"%a{i}", outer.dtype, outer.lanes, 0)
        value.nonneg = outer.nonneg
        inner.env[var] = value
        parameters.append(f"{value.type} {value.text}")
    begin, end = Val("%begin", INT64, 1, 0), Val("%end", INT64, 1, 0)
    begin.nonneg = end.nonneg = True
    serial_loop(inner, node, begin, end)
    parameters += ["i64 %begin", "i64 %end"]
    e.module.add_function(f"internal i32 @{name}.body({', '.join(parameters)})", inner)


def _entry_function(e: Emitter, name: str, values: list[Val]) -> None:
    """Add `void NAME.entry(closure)`, which each thread of the team calls."""
    e.module.declare("omp_get_num_threads", "i32 @omp_get_num_threads()", "nounwind")
    e.module.declare("omp_get_thread_num", "i32 @omp_get_thread_num()", "nounwind")
    e.module.externs.update(("omp_get_num_threads", "omp_get_thread_num"))
    lines, arguments = [], []
    for i, value in enumerate(values, 1):
        lines.append(f"%s{i} = getelementptr i64, ptr %closure, i64 {i}")
        lines.append(f"%x{i} = load {value.type}, ptr %s{i}")
        arguments.append(f"{value.type} %x{i}")
    extent = f"%x{len(values)}"
    arguments[-1:] = ["i64 %begin", "i64 %end"]
    lines += [
        "%team32 = call i32 @omp_get_num_threads()",
        "%me32 = call i32 @omp_get_thread_num()",
        "%team = zext i32 %team32 to i64",
        "%me = zext i32 %me32 to i64",
        f"%share = udiv i64 {extent}, %team",
        f"%more = urem i64 {extent}, %team",
        "%extra = icmp ult i64 %me, %more",
        "%before = select i1 %extra, i64 %me, i64 %more",
        "%base = mul i64 %share, %me",
        "%begin = add i64 %base, %before",
        "%one = zext i1 %extra to i64",
        "%mine = add i64 %share, %one",
        "%end = add i64 %begin, %mine",
        f"%code = call i32 @{name}.body({', '.join(arguments)})",
        "%failed = icmp ne i32 %code, 0",
        "br i1 %failed, label %bad, label %good",
        "bad:",
        "store atomic i32 %code, ptr %closure monotonic, align 4",
        "br label %good",
        "good:",
        "ret void",
    ]
    head = f"define internal void @{name}.entry(ptr %closure) {e.module.target_attribute} {{"
    e.module.definitions[f"{name}.entry"] = "\n".join([head, *lines, "}"])
