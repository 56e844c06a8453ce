"""Random programs whose lanes run loops of their own: nested loops, breaks, branches, gathers.

`python -m tests.lower.random_lane_loops --start N --cases M` compares each vectorized program with
the same program in a serial loop, interpreted and compiled.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from oracle import check_numbers

from metasched.ir.func import IRModule, PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse

HEAD = """
@T.prim_func
def main(A: T.Buffer(({n},), "{kind}"), D: T.Buffer((8,), "{kind}"), B: T.Buffer(({n},), "{kind}"),
         C: T.Buffer(({n}, 3), "{kind}")):
    for i in {loop}({n}):
        x = A[i]
        y = T.{kind}(1)
        z = T.{kind}(3)
        s = T.allocate((3,), "{kind}")
        s[0] = x
        s[1] = y
        s[2] = z
"""
FUEL = 5  # the most iterations of a loop


class _Program:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kind = self.rng.choice(["int32", "int32", "float32", "float64", "int8"])
        self.lanes = self.rng.choice([2, 4, 8, 16, 5])
        self.lines: list[str] = []
        self.count = 0

    def text(self, loop: str) -> str:
        head = HEAD.format(n=self.lanes, kind=self.kind, loop=loop)
        return head + "\n".join(self.lines) + "\n"

    def value(self, depth: int = 2) -> str:
        pick = self.rng.random()
        if depth == 0 or pick < 0.4:
            return self.rng.choice(["x", "y", "z", "A[i]", f"T.{self.kind}(2)"])
        if pick < 0.5:
            return f"D[{self.small()} % 8]"
        if pick < 0.54:
            return f"s[{self.small()} % 3]"
        if pick < 0.58 and "int" in self.kind:
            return f"({self.value(depth - 1)} // T.max({self.rng.choice('xyz')}, T.{self.kind}(1)))"
        a, b = self.value(depth - 1), self.value(depth - 1)
        if pick < 0.68:
            return f"T.max({a}, {b})"
        return f"({a} {self.rng.choice('+-')} {b})"

    def small(self) -> str:
        """An index; floats may be too large for a cast."""
        value = self.rng.choice("xyz") if "int" in self.kind else "A[i]"
        return f"T.Cast('int32', T.abs({value}))"

    def condition(self) -> str:
        text = f"{self.value(1)} {self.rng.choice(['<', '>=', '==', '!='])} {self.value(1)}"
        if self.rng.random() < 0.3:
            text = f"{text} {self.rng.choice(['and', 'or'])} {self.value(1)} < {self.value(1)}"
        return text

    def statements(self, depth: int, indent: int, loops: int) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self.statement(depth, indent, loops)

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, depth: int, indent: int, loops: int) -> None:
        pick = self.rng.random()
        if depth == 0 or pick < 0.35:
            self.line(indent, f"{self.rng.choice('xyz')} = {self.value()}")
        elif pick < 0.42:
            self.line(indent, self.rng.choice(["B[i] = ", "C[i, 1] = "]) + self.value())
        elif pick < 0.46:  # lanes with another place do not store
            place = self.small()
            self.line(indent, f"if {place} >= 0 and {place} < 3:")
            self.line(indent + 1, f"s[{place}] = {self.value()}")
        elif pick < 0.5:
            self.count += 1
            self.line(indent, f"t{self.count} = {self.value()}")
            self.line(indent, f"{self.rng.choice('xyz')} = t{self.count} + t{self.count}")
        elif pick < 0.66:
            self.line(indent, f"if {self.condition()}:")
            self.statements(depth - 1, indent + 1, loops)
            if loops and self.rng.random() < 0.4:
                self.line(indent + 1, self.rng.choice(["break", "continue"]))
            elif self.rng.random() < 0.5:
                self.line(indent, "else:")
                self.statements(depth - 1, indent + 1, loops)
        elif pick < 0.83:
            self.count += 1
            fuel = f"n{self.count}"
            self.line(indent, f"{fuel} = T.int32(0)")
            self.line(indent, f"while {fuel} < {FUEL} and ({self.condition()}):")
            self.line(indent + 1, f"{fuel} = {fuel} + 1")
            self.statements(depth - 1, indent + 1, loops + 1)
        else:
            self.count += 1
            end = f"{self.small()} % {FUEL}"
            end = self.rng.choice([end, end, "3"])
            self.line(indent, f"for k{self.count} in range({self.rng.choice(['0', '1'])}, {end}):")
            self.statements(depth - 1, indent + 1, loops + 1)


def random_pair(seed: int) -> tuple[PrimFunc, IRModule]:
    """A program in a serial loop, and the same program in a vectorized loop."""
    program = _Program(seed)
    while not any("while" in line or "for" in line for line in program.lines):
        program.statements(3, 2, 0)
    program.line(2, "B[i] = x + y + s[0]")
    program.line(2, "C[i, 0] = y - z + s[1] - s[2]")
    lanes = parse(program.text("T.vectorized"))
    return parse(program.text("range")), Schedule(lanes).mod


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    given = parser.parse_args()
    failures = 0
    for seed in range(given.start, given.start + given.cases):
        try:
            check_numbers(*random_pair(seed), compiled=True)
        except Exception as error:
            failures += 1
            print(f"case {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"{given.cases} cases, {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
