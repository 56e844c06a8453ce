"""Random programs of rows with a state: searches that stop early, walks, votes, in all types.

Arrays of one size n, as in `space.plain_idioms`, each of a type of its own, 8-bit floats and
unsigned integers among them. The idioms of a program share the names of their variables, which get
other types.
"""

from __future__ import annotations

from collections.abc import Callable

from space.plain_idioms import Declare, Extent, Program, run_time_program
from space.random_kinds import Draw

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
         "bfloat16", "float32", "float32", "float64", "float8_e5m2", "float8_e4m3fn")  # fmt: skip
WIDE = ("int32", "int64", "uint32", "uint64", "float32", "float64")


def number(p: Program, dtype: str) -> str:
    return f"T.{dtype}({p.d.rng.choice((0, 1, 2, 3, 5))})"


def whole(p: Program, value: str, kind: str, dtype: str) -> str:
    """A value of one type as another."""
    if kind == dtype:
        return value
    if "float" in kind and "int" in dtype:
        low, high = ("0", "100") if dtype[0] == "u" else ("-100", "100")
        return f'T.cast(T.max(T.min({value}, T.{kind}({high})), T.{kind}({low})), "{dtype}")'
    return f'T.cast({value}, "{dtype}")'


def mixed(p: Program, kind: str, places: list[str], depth: int = 2) -> str:
    """An expression of a type over places of all types."""
    d, place = p.d, p.d.pick(*places)
    if depth == 0 or d.often(0.25):
        return d.pick(p.load(place, kind), p.load(place, kind), number(p, kind))
    a, b = mixed(p, kind, places, depth - 1), mixed(p, kind, places, depth - 1)
    forms = [f"({a} + {b})", f"({a} - {b})", f"T.min({a}, {b})", f"T.max({a}, {b})",
             f"T.if_then_else({test(p, places)}, {a}, {b})",
             f"T.Select({test(p, places)}, {a}, {b})",
             f"({a} if {test(p, places)} else {b})"]  # fmt: skip
    if "int" in kind:
        forms += [f"({a} ^ {b})", f"({a} & {b})", f"({a} | {b})", f"{a} * {b}",
                  f"T.floordiv({a}, T.{kind}(3))", f"T.truncmod({a}, T.{kind}(5))",
                  f"({a} >> T.{kind}({d.rng.randrange(7)}))", f"T.floormod({a}, T.{kind}(7))",
                  f"({a} << T.{kind}({d.rng.randrange(4)}))"]  # fmt: skip
    else:
        forms += [f"T.abs({a})", f"({a} * T.{kind}(0.5))"]
    return d.pick(*forms)


def test(p: Program, places: list[str], depth: int = 1) -> str:
    """A condition over places of all types."""
    d, place = p.d, p.d.pick(*places)
    kind = p.types[place.split("[")[0]]
    if depth and d.often(0.4):
        a, b = test(p, places, depth - 1), test(p, places, depth - 1)
        return d.pick(f"({a} and {b})", f"({a} or {b})", f"(not ({a}))")
    if d.often(0.2):
        return (
            f"{number(p, kind)} <= {place} {d.pick('<', '<=')} T.{kind}({d.rng.choice((2, 4, 7))})"
        )
    other = p.load(d.pick(*places), kind) if d.often(0.4) else number(p, kind)
    return f"{place} {d.pick('<', '<=', '>', '>=', '==', '!=')} {other}"


def stores(p: Program, values: dict[str, str], where: str) -> None:
    """Stores of variables, with their types, into as many arrays."""
    rows = [a for a in p.types if a[0] == "V"]
    p.d.rng.shuffle(rows)
    for (name, kind), row in zip(values.items(), rows, strict=False):
        value = whole(p, name, kind, p.types[row])
        p.add(f"{row}[{where}] = {value}" if p.d.often(0.8) else p.step(f"{row}[{where}]", value))


def scanned(p: Program) -> None:
    """A row is read up to a condition: a sum, a count, an extremum with its place, a flag."""
    d, m = p.d, p.pick(2)
    kind, wide = p.types[m], d.pick(*WIDE)
    columns = d.often(0.3)
    p.loops("i")
    at = f"{m}[j, i]" if columns else f"{m}[i, j]"
    first = f"{m}[0, i]" if columns else f"{m}[i, 0]"
    places = [at, f"{p.pick(1)}[i]", f"{p.pick(1)}[j]"]
    p.add(f"s = T.{wide}(0)", "c = 0", f"x = {first}", "ok = False", f"for j in range({p.n}):")
    p.depth += 1
    if d.often(0.6):
        p.add(f"if {test(p, places)}:", f"    {d.pick('break', 'continue', 'continue')}")
    p.add(p.step("s", mixed(p, wide, places)))
    if d.often(0.6):
        p.add(f"if {at} {d.pick('>', '>=', '<', '<=')} x:", f"    x = {at}", "    c = j")
        if d.often(0.5):
            p.add(f"elif {test(p, places)}:", "    c = c + 1")
    else:
        p.add(f"if {test(p, places)}:", f"    if {test(p, places)}:", "        c += 1",
              "    else:", "        ok = True")  # fmt: skip
    if d.often(0.3):
        p.add(f"if {test(p, places)}:", "    ok = True", f"    {d.pick('break', 'c = c - 1')}")
    p.depth -= 1
    if d.often(0.5):
        p.add("if ok:", f"    s = {number(p, wide)}")
    stores(p, {"s": wide, "c": "int32", "x": kind}, "i")


def walked(p: Program) -> None:
    """A `while` for each row: follow indices, halve an interval, divide, until a condition."""
    d, v = p.d, p.pick(1)
    kind, most = p.types[v], d.rng.choice((3, 7, 20))
    p.loops("i")
    form = d.rng.randrange(4)
    if form == 0:  # a chain of indices
        p.add("k = i", "c = 0", f"while c < {most}:", "    c += 1")
        places = [f"{v}[k]", f"{p.pick(1)}[i]"]
        p.depth += 1
        p.add(f"if {test(p, places)}:", f"    {d.pick('break', 'continue')}",
              'k = T.cast(P[k], "int32")')  # fmt: skip
        p.depth -= 1
        stores(p, {"c": "int32", f"{v}[k]": kind}, "i")
    elif form == 1:  # an interval
        p.add("lo = 0", f"hi = {p.n}", f"x = {v}[i]", "while lo < hi:",
              "    k = (lo + hi) // 2", f"    if {v}[k] {d.pick('<', '<=')} x:",
              "        lo = k + 1", "    else:", "        hi = k")  # fmt: skip
        stores(p, {"lo": "int32", "x": kind}, "i")
    elif form == 2:  # a number and its digits
        wide = d.pick("int32", "int64", "uint32", "uint8", "uint64")
        less = d.pick(f"x >> T.{wide}(1)", f"x // T.{wide}(3)", f"x & (x - T.{wide}(1))")
        p.add(f"x = {p.load(f'{v}[i]', wide)}", "c = T.int64(0)", f"while x > T.{wide}(0):",
              f"    x = {less}",
              "    c = c + 1", f"    if c == {most}:", "        break")  # fmt: skip
        stores(p, {"c": "int64", "x": wide}, "i")
    else:  # halves until small
        real = d.pick("float32", "float64")
        p.add(f"x = T.abs({p.load(f'{v}[i]', real)})", "c = 0",
              f"while x > T.{real}(1) and c < {most}:",
              f"    x = x * T.{real}(0.5)", f"    if x < T.{real}({d.rng.choice((1, 2))}):",
              "        continue", "    c += 1")  # fmt: skip
        p.add(f"while x > T.{real}(0.125) and c < {2 * most}:",
              f"    x = x * T.{real}(0.5)", "    c += 1")  # fmt: skip
        stores(p, {"x": real, "c": "int32"}, "i")


def voted(p: Program) -> None:
    """Blocks that reduce by sums, products, extrema and bits of one or two types."""
    d, m = p.d, p.pick(2)
    results = [p.pick(1) for _ in range(d.rng.choice((1, 1, 2)))]
    if len(set(results)) < len(results) or isinstance(p.n, Extent):
        results = results[:1]
    at = d.pick(f"{m}[vi, vk]", f"{m}[vk, vi]")
    others = [f"{a}[vk]" for a in p.types if a[0] == "V" and a not in results]
    first, more = [], []
    for result in results:
        kind, target = p.types[result], f"{result}[vi]"
        value = mixed(p, kind, [at, *others], 1)
        forms = {f"{target} + {value}": "0", f"T.max({target}, {value})": f'T.min_value("{kind}")',
                 f"T.min({target}, {value})": f'T.max_value("{kind}")'}  # fmt: skip
        if "int" in kind:
            most = f'T.max_value("{kind}")'
            forms |= {f"{target} * {value}": "1", f"{target} ^ {value}": "0",
                      f"{target} | {value}": "0", f"{target} & {value}": most}  # fmt: skip
        form = d.pick(*forms)
        start = forms[form]
        first.append(f"{target} = " + (start if start[0] == "T" else f"T.{kind}({start})"))
        more.append(f"{target} = {form}")
    p.add(f"for i, k in T.grid({p.n}, {p.n}):", f'    with T.block("{p.fresh("vote")}"):')
    p.t.add(p.depth + 2, 'vi, vk = T.axis.remap("SR", [i, k])', "with T.init():",
            *(f"    {line}" for line in first), *more)  # fmt: skip


def shifted(p: Program) -> None:
    """Rows and columns that overwrite one another, in order."""
    d, m, n = p.d, p.pick(2), p.n
    kind, other = p.types[m], p.pick(2)
    form = d.rng.randrange(4)
    if form == 0:
        p.loops("ij")
        rows = ["(i + 1) % {n}", "T.max(i - 1, 0)", "{n} - 1 - i", "i"]
        source = f"{m}[{d.pick(*rows).format(n=n)}, {d.pick('j', f'{n} - 1 - j')}]"
        p.add(p.step(f"{m}[i, j]", mixed(p, kind, [source, f"{other}[i, j]"], 1)))
    elif form == 1:
        p.loops("i")
        p.add(f"for j in range({n} // 2):", f"    x = {m}[i, j]",
              f"    {m}[i, j] = {m}[i, {n} - 1 - j]", f"    {m}[i, {n} - 1 - j] = x")  # fmt: skip
    elif form == 2:
        p.loops("i")
        p.add(f"x = {m}[i, 0]", f"for j in range({n} - 1):", f"    {m}[i, j] = {m}[i, j + 1]",
              f"{m}[i, {n} - 1] = x")  # fmt: skip
    else:
        p.loops("ij")
        p.add(f"if {test(p, [f'{m}[i, j]', f'{m}[j, i]', f'{other}[j, i]'])}:",
              f"    x = {m}[i, j]", f"    {m}[i, j] = {m}[j, i]", f"    {m}[j, i] = x")  # fmt: skip


def chosen(p: Program) -> None:
    """Nested choices among values of other types, into two arrays."""
    d, a, b = p.d, p.pick(2), p.pick(2)
    p.loops("ij")
    places = [f"{p.pick(2)}[i, j]", f"{p.pick(1)}[j]", f"{p.pick(1)}[i]", f"{a}[i, j]"]
    p.add(f"ok = {test(p, places)}", f"x = {mixed(p, p.types[a], places)}",
          f"{a}[i, j] = T.if_then_else(ok, x, {mixed(p, p.types[a], places)})")  # fmt: skip
    if d.often(0.6):
        p.add(f"if ok and {test(p, places)}:",
              f"    {b}[i, j] = {mixed(p, p.types[b], places)}")  # fmt: skip
        if d.often(0.5):
            p.add(f"elif {test(p, places)}:", f"    {p.step(f'{b}[i, j]', number(p, p.types[b]))}")


def found_first(p: Program) -> None:
    """The first place of a value; sometimes the function ends there."""
    d, v, w = p.d, p.pick(1), p.pick(1)
    form = d.rng.randrange(3)
    if form == 0:
        p.add(f"for i in range({p.n}):")
        p.depth += 1
        p.add(f"if {test(p, [f'{v}[i]', f'{w}[i]'])}:",
              f"    {w}[0] = {p.load(f'{v}[i]', p.types[w])}", "    return")  # fmt: skip
    elif form == 1:
        p.add("c = -1", f"for i in range({p.n}):", f"    if {test(p, [f'{v}[i]', f'{w}[i]'])}:",
              "        c = i", "        break", "if c >= 0:",
              f"    {w}[c] = {number(p, p.types[w])}")  # fmt: skip
    else:
        p.add(f"x = T.{p.types[v]}(0)", "ok = False", f"for i in range({p.n}):",
              "    if ok:", f"        {v}[i] = x",
              f"    elif {test(p, [f'{v}[i]', f'{w}[i]'])}:",
              f"        x = {v}[i]", "        ok = True")  # fmt: skip


IDIOMS: tuple[Callable[[Program], None], ...] = (
    scanned, scanned, scanned, walked, walked, voted, voted, shifted, chosen, chosen, found_first,
)  # fmt: skip


def row_machines(d: Draw) -> str:
    """A few idioms over shared arrays."""
    p = Program(d, d.size(1, 40))
    _declare(p, lambda name, shape, dtype: p.t.param(name, shape, dtype))
    return _some(p)


def run_time_rows(d: Draw) -> str:
    """The same, where the extent of all dimensions is `n`."""
    return _some(run_time_program(d, _declare))


def _declare(p: Program, declare: Declare) -> None:
    kinds = [p.d.pick(*TYPES) for _ in range(p.d.rng.choice((1, 2, 3, 4)))]
    for name in ("M0", "M1", "V0", "V1", "V2"):
        p.types[name] = p.d.pick(*kinds)
        declare(name, (p.n,) if name[0] == "V" else (p.n, p.n), p.types[name])
    declare("P", (p.n,), p.d.pick("int32", "int64", "uint8"))


def _some(p: Program) -> str:
    for _ in range(p.d.rng.choice((1, 1, 2, 3))):
        p.depth = 1
        p.d.rng.choice(IDIOMS)(p)
    return str(p.t)
