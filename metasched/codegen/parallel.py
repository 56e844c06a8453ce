"""Parallel loops: the body becomes a function of its own that a team of OpenMP threads runs.

The team has at most as many threads as the target has cores. Each thread takes one contiguous share
of the iterations; the shares depend on the size of the team at run time. Where the work of an
iteration depends on its number, as in a triangle, each thread takes one share from either end: the
work is equal where it grows or falls evenly. Pointers are passed in a closure, then as `noalias`
arguments of an inner function: a pointer loaded from memory cannot be `noalias`. A parallel loop
inside another parallel loop runs serially.
"""

from __future__ import annotations

from metasched.codegen.barrier import FIRST_VALUE, LINE, clear_barrier
from metasched.codegen.emit import Emitter, SerialLoop
from metasched.codegen.values import Val
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import BOOL, HANDLE, INT64
from metasched.ir.expr import Expr, Var
from metasched.ir.stmt import Allocate, BufferStore, DeclBuffer, For, IfThenElse, LetStmt
from metasched.ir.visit import free_vars, stmt_vars, walk, walk_stmts


def emit_parallel(e: Emitter, node: For, extent: Val, serial_loop: SerialLoop) -> None:
    """Write the functions of the body and call the team here."""
    variables, pointers = captured(e, node)
    name = e.module.fresh_function(f"{e.name}.parallel")
    body_function(e, name, node, variables, pointers, serial_loop)
    call_team(e, name, [*pointers.values(), *variables.values(), extent], node)


def call_team(e: Emitter, name: str, values: list[Val], loop: For | None = None) -> None:
    """Let a team of threads call a function, and leave this function with the code of a failure.

    Args:
        name: of the function without `.body`.
        values: its arguments; the last one is the extent of the loop.
        loop: the loop whose iterations the threads share: each thread gets the two ends of a share.
            Where None, each thread gets the extent, its number, the size of the team and a place
            for the code of a failure.
    """
    _entry_function(e, name, values, loop)
    slots = len(values) + FIRST_VALUE
    closure = e.fresh("closure")
    e.allocas.append(f"{closure} = alloca [{slots} x i64], align {LINE}")
    e.line(f"store i32 0, ptr {closure}")
    if loop is None:
        clear_barrier(e, closure)
    for i, value in enumerate(values, FIRST_VALUE):
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


def captured(e: Emitter, node: For) -> tuple[dict[Expr, Val], dict[Var, Val]]:
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


def body_function(
    e: Emitter, name: str, node: For, variables: dict[Expr, Val], pointers: dict[Var, Val],
    serial_loop: SerialLoop,
) -> None:  # fmt: skip
    """`i32 NAME.body(pointers, variables, begin, end)`: iterations begin ... end - 1."""
    inner, parameters = inner_function(e, name, variables, pointers, "ptr noalias")
    begin, end = Val("%begin", INT64, 1, 0), Val("%end", INT64, 1, 0)
    begin.nonneg = end.nonneg = True
    serial_loop(inner, node, begin, end)
    parameters += ["i64 %begin", "i64 %end"]
    inner.define(f"internal i32 @{name}.body({', '.join(parameters)})")


def inner_function(
    e: Emitter, name: str, variables: dict[Expr, Val], pointers: dict[Var, Val], pointer: str
) -> tuple[Emitter, list[str]]:
    """The emitter of a function that threads call, and its parameters for what it captured.

    Args:
        pointer: how pointers are passed, each address once.
    """
    inner = Emitter(e.module, e.rules, name, serial=True, liberties=e.liberties)
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
            parameters.append(f"{pointer} {known.text}")
        else:
            parameters.append(f"ptr %same{len(parameters)}")
        inner.pointers[data] = known
    for i, (var, outer) in enumerate(variables.items()):
        value = Val(f"%a{i}", outer.dtype, outer.lanes, 0)
        value.nonneg = outer.nonneg
        inner.env[var] = value
        parameters.append(f"{value.type} {value.text}")
    return inner, parameters


def shares(e: Emitter, loop: For, extent: Val, me: Val, size: Val) -> list[tuple[Val, Val]]:
    """The ends of the shares of one thread: one share, or two of a loop of uneven work."""
    if not uneven(loop):
        return [_share(e, extent, me, size)]
    twice = e.pure(f"shl i64 {size.text}, 1", INT64, 1, size)
    other = e.pure(f"sub i64 {twice.text}, {me.text}", INT64, 1, twice, me)
    last = e.pure(f"sub i64 {other.text}, 1", INT64, 1, other)
    return [_share(e, extent, me, twice), _share(e, extent, last, twice)]


def uneven(loop: For) -> bool:
    """Whether an end of a loop inside, or a condition, depends on the variable of the loop."""
    known: set[Expr] = {loop.var}
    for stmt in walk_stmts(loop.body):
        if isinstance(stmt, LetStmt) and not known.isdisjoint(free_vars(stmt.value)):
            known.add(stmt.var)
        controls = stmt.exprs if isinstance(stmt, For) else ()
        if isinstance(stmt, IfThenElse):
            controls = (stmt.condition,)
        if any(not known.isdisjoint(free_vars(e)) for e in controls):
            return True
    return False


def _share(e: Emitter, extent: Val, me: Val, size: Val) -> tuple[Val, Val]:
    """The ends of the contiguous share of one thread; the first threads take one iteration more.

    An extent below zero counts as zero.
    """

    def wide(text: str, *operands: Val) -> Val:
        return e.pure(text, INT64, 1, *operands)

    some = e.pure(f"icmp sgt i64 {extent.text}, 0", BOOL, 1, extent)
    extent = wide(f"select i1 {some.text}, i64 {extent.text}, i64 0", some, extent)
    each = wide(f"udiv i64 {extent.text}, {size.text}", extent, size)
    more = wide(f"urem i64 {extent.text}, {size.text}", extent, size)
    extra = e.pure(f"icmp ult i64 {me.text}, {more.text}", BOOL, 1, me, more)
    before = wide(f"select i1 {extra.text}, i64 {me.text}, i64 {more.text}", extra, me, more)
    base = wide(f"mul i64 {each.text}, {me.text}", each, me)
    begin = wide(f"add i64 {base.text}, {before.text}", base, before)
    one = wide(f"zext i1 {extra.text} to i64", extra)
    mine = wide(f"add i64 {each.text}, {one.text}", each, one)
    return begin, wide(f"add i64 {begin.text}, {mine.text}", begin, mine)


def _entry_function(e: Emitter, name: str, values: list[Val], loop: For | None) -> None:
    """Add `void NAME.entry(closure)`, which each thread of the team calls."""
    e.module.declare("omp_get_num_threads", "i32 @omp_get_num_threads()", "nounwind")
    e.module.declare("omp_get_thread_num", "i32 @omp_get_thread_num()", "nounwind")
    e.module.externs.update(("omp_get_num_threads", "omp_get_thread_num"))
    entry = Emitter(e.module, e.rules, name, serial=True)
    arguments = []
    for i, value in enumerate(values, FIRST_VALUE):
        entry.line(f"%s{i} = getelementptr i64, ptr %closure, i64 {i}")
        entry.line(f"%x{i} = load {value.type}, ptr %s{i}")
        arguments.append(f"{value.type} %x{i}")
    for number, what in (("team", "omp_get_num_threads"), ("me", "omp_get_thread_num")):
        entry.line(f"%{number}32 = call i32 @{what}()")
        entry.line(f"%{number} = zext i32 %{number}32 to i64")
    if loop is None:
        arguments += ["i64 %me", "i64 %team", "ptr %closure"]
        entry.line(f"call i32 @{name}.body({', '.join(arguments)})")
    else:
        last = len(values) + FIRST_VALUE - 1
        counts = [Val(text, INT64) for text in (f"%x{last}", "%me", "%team")]
        for ends in shares(entry, loop, *counts):
            call_body(entry, name, [*arguments[:-1], *(end.typed for end in ends)], "%closure")
    head = f"define internal void @{name}.entry(ptr %closure) {e.module.target_attribute} {{"
    lines = [*entry.scopes[0].lines, "ret void", "}"]
    e.module.definitions[f"{name}.entry"] = "\n".join([head, *lines])


def call_body(e: Emitter, name: str, arguments: list[str], place: str) -> None:
    """Call `NAME.body`, and leave the code of a failure at a place."""
    code = e.fresh("code")
    e.line(f"{code} = call i32 @{name}.body({', '.join(arguments)})")
    _leave_code(e, code, place)


def _leave_code(e: Emitter, code: str, place: str) -> None:
    """Store the code of a failure, if it is one, where the caller of the team finds it."""
    bad, failed, done = e.fresh("bad"), e.fresh_label("failed"), e.fresh_label("done")
    e.line(f"{bad} = icmp ne i32 {code}, 0")
    e.line(f"br i1 {bad}, label %{failed}, label %{done}")
    e.label(failed)
    e.line(f"store atomic i32 {code}, ptr {place} monotonic, align 4")
    e.branch(done)
    e.label(done)
