"""Random statements over all types, read as a script and run as Python over NumPy.

Integers of all widths and signs mix, and so do floating-point numbers; an integer becomes a
floating-point number by a cast only. Both readings leave the same bits, or the script is refused.
A statement is left out where Python itself raises, and where both sides of a choice differ in type,
for a script converts both to one type. No unsigned number is shifted by a signed count: a script
keeps its type, where NumPy widens it.

    python -m tests.script.typed_expressions --cases 20000
"""

from __future__ import annotations

import argparse
import ast
import collections
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from as_python import PythonT, program, same

from metasched.errors import ParseError
from metasched.ir.interp import run
from metasched.runtime.build import build

INTEGERS = {"a": "int8", "b": "int16", "c": "int32", "d": "int64",
            "u": "uint8", "v": "uint16", "w": "uint32", "x": "uint64"}  # fmt: skip
FLOATS = {"h": "float16", "f": "float32", "g": "float64"}
TYPES = {**INTEGERS, **FLOATS, "z": "bool"}
SIZE = 4
NUMBERS = ("0", "1", "2", "3", "-1", "-3", "127", "128", "255", "65536", "2147483647",
           "-2147483648", "(1 << 3)", "(-7 // 2)", "(-7 % 3)")  # fmt: skip
REALS = ("0.5", "2.0", "-0.0", "0.1", "3", "-2", "(7 / 2)", "1e30")
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
Rule = Callable[..., Any]


class Writer:
    """Draws the expressions of one statement; all names are elements `x[i]`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def fill(self, leaves: tuple[str, ...], forms: tuple[str, ...], depth: int) -> str:
        """A form with @i, @r and @c replaced by integers, reals and conditions, or a leaf."""
        rng = self.rng
        if depth <= 0 or rng.random() < 0.12:
            return rng.choice(leaves)
        rules: dict[str, Rule] = {"i": self.integer, "r": self.real, "c": self.condition}
        first, *rest = rng.choice(forms).split("@")
        return first + "".join(rules[part[0]](depth - 1) + part[1:] for part in rest)

    def integer(self, depth: int) -> str:
        pick = self.rng.choice
        name = f"{pick(list(INTEGERS))}[i]"
        by = pick(("3", "-4", "7", "(abs(b[i]) + 9)"))
        forms = (
            *(f"(@i {op} @i)" for op in ("+", "-", "*", "&", "|", "^")), f"(@i // {by})",
            f"(@i % {by})", "(@i << (u[i] & 3))", "(@i << 2)", "(@i >> (u[i] & 7))",
            "(T.int32(@i) >> (c[i] & 7))", "(T.int64(@i) >> i)",
            "(-@i)", "(~@i)", "min(@i, @i)", "max(@i, 3)", "abs(@i)", "(@i ** 2)",
            f"T.{pick(tuple(INTEGERS.values()))}(@i)",
        )  # fmt: skip
        return self.fill((name, name, name, "i", pick(NUMBERS)), forms, depth)

    def real(self, depth: int) -> str:
        pick = self.rng.choice
        name = f"{pick(list(FLOATS))}[i]"
        forms = (
            *(f"(@r {op} @r)" for op in ("+", "-", "*", "/", "//", "%")), "(-@r)", "abs(@r)",
            "(@r ** 2)", f"T.{pick(tuple(FLOATS.values()))}(@r)", "T.float32(@i)", "T.float64(@i)",
        )  # fmt: skip
        return self.fill((name, name, name, pick(REALS)), forms, depth)

    def condition(self, depth: int) -> str:
        pick = self.rng.choice
        sign = pick(COMPARISONS)
        simple = (f"({self.integer(0)} {sign} {self.integer(0)})",
                  f"({self.real(0)} {sign} {self.real(0)})", "z[i]")  # fmt: skip
        forms = (f"(@i {sign} @i)", f"(@r {sign} @r)", "(@i < @i <= @i)", "(@c and @c)",
                 "(@c or @c)", "(not @c)", f"(@c {pick(('==', '!=', '&', '|', '^'))} @c)",
                 "(@c if @c else @c)")  # fmt: skip
        return self.fill(simple, forms, depth)

    def statements(self) -> tuple[str, list[str]]:
        """The type of O and the statements that set O[i]."""
        rng = self.rng
        forms = (self.integer, INTEGERS), (self.real, FLOATS), (self.condition, {"z": "bool"})
        rule, kinds = rng.choice((*forms, forms[0]))
        out, value, lines = rng.choice(tuple(kinds.values())), rule(rng.choice((1, 1, 2, 3))), []
        if rng.random() < 0.3:
            lines.append(f"y = {value}")
            value = "y"
        cast = rng.random() < 0.7 and out != "bool"
        lines.append(f"O[i] = T.{out}({value})" if cast else f"O[i] = {value}")
        if rng.random() < 0.3 and out != "bool":
            ops = ("+=", "-=", "*=") + (("&=", "|=", "^=") if out in INTEGERS.values() else ())
            lines.append(f"O[i] {rng.choice(ops)} {rule(1)}")
        return out, lines


def arguments(seed: int) -> list[np.ndarray]:
    """An array of each type; the ends of the range and both zeros are among the integers."""
    rng = np.random.default_rng(seed)
    made = []
    for name in TYPES.values():
        if name == "bool":
            made.append(rng.integers(0, 2, SIZE).astype(bool))
        elif name in FLOATS.values():
            made.append(rng.choice([0.0, -0.0, 0.5, -1.5, 3, 7, -8, 100], SIZE).astype(name))
        else:
            low, high = int(np.iinfo(name).min), int(np.iinfo(name).max)
            known = [v for v in (0, 1, 2, 3, 5, 7, -1, -2, -3, -7, 100, low, high, high - 1)
                     if low <= v <= high]  # fmt: skip
            made.append(np.array([known[k] for k in rng.integers(0, len(known), SIZE)], name))
    return made


def text_of(seed: int) -> tuple[str, str]:
    """The type of the result and the script of a case."""
    out, lines = Writer(random.Random(seed)).statements()
    params = [f'{k}: T.Buffer(({SIZE},), "{t}")' for k, t in (*TYPES.items(), ("O", out))]
    body = "".join(f"        {line}\n" for line in lines)
    return out, f"@T.prim_func\ndef f({', '.join(params)}):\n    for i in range({SIZE}):\n{body}"


def _choice(plain: Rule, whole: Rule) -> Rule:
    """min or max that keeps Python numbers, and else gives the common type."""

    def choose(*values: Any) -> Any:
        return (plain if all(type(v) in (int, float) for v in values) else whole)(*values)

    return choose


class _Squares(ast.NodeTransformer):
    """x ** 2 of a NumPy number as x * x: of an array NumPy computes this, but of one number `powf`,
    whose last bit may be wrong, as in numpy.float32(70000) ** 2."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Pow):
            return node
        return ast.Call(ast.Name("squared", ast.Load()), [node.left], [])


def play(seed: int, *, compiled: bool) -> str:
    """Check a case; "equal", "refused", or "raises" where Python raises an exception."""
    out, text = text_of(seed)
    try:
        func = program(text)
    except ParseError:
        return "refused"
    want = [*arguments(seed), np.zeros(SIZE, out)]
    got, native = ([a.copy() for a in want] for _ in range(2))
    names: dict[str, Any] = {"T": PythonT(), "range": lambda n: map(np.int32, range(n))}
    names |= {"min": _choice(min, np.minimum), "max": _choice(max, np.maximum)}
    names["squared"] = lambda x: x**2 if type(x) in (int, float) else x * x
    exec(ast.unparse(_Squares().visit(ast.parse(text))), names)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            names["f"](*want)
        except (OverflowError, ZeroDivisionError, TypeError):
            return "raises"
        run(func, *got)
    same(want, got, f"interpreted:\n{text}")
    if compiled:
        build(func)(*native)
        same(want, native, f"compiled:\n{text}")
    return "equal"


def main() -> int:
    """Play cases and print how many were equal, refused, or no Python."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    counts, failed = collections.Counter[str](), 0
    for seed in range(options.start, options.start + options.cases):
        try:
            counts[play(seed, compiled=seed % 4 == 0)] += 1
        except Exception as error:  # a fuzz reports any exception
            failed += 1
            print(f"case {seed}\n{text_of(seed)[1]}{type(error).__name__}: {error}\n", flush=True)
    print(f"{options.cases} cases: {dict(counts)}, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
