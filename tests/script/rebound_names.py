"""Random scripts whose few names are rebound to values of other types, in loops and branches."""

from __future__ import annotations

import random

import numpy as np

NAMES = "abc"
HEAD = """
@T.prim_func
def f(A: T.Buffer((8,), "float64"), B: T.Buffer((8,), "float64"), N: T.Buffer((8,), "int32"), p: T.int32):
"""  # noqa: E501


def arguments(seed: int) -> list[object]:
    rng = np.random.default_rng(seed)
    a, n = rng.integers(-4, 5, 8).astype("float64"), rng.integers(0, 9, 8).astype("int32")
    return [a, np.zeros(8), n, int(rng.integers(0, 4))]


class Rebound:
    """A script in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.loops = rng, 0
        first = (rng.choice(["1", "T.float64(2)", "N[0]"]) for _ in NAMES)
        self.lines = [f"    {n} = {v}" for n, v in zip(NAMES, first, strict=True)]
        for _ in range(2):
            self.body(1, False)

    def __str__(self) -> str:
        return HEAD + "\n".join(self.lines) + "\n"

    def add(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def value(self) -> str:
        name, k = self.rng.choice(NAMES), self.rng.randrange(5)
        number, other = self.rng.choice([f"{k}", f"T.float64({k})"]), self.rng.choice("AN")
        cast = f'T.cast({name}, "{self.rng.choice(["int32", "float64"])}")'
        return self.rng.choice([number, number, f"{other}[{k}]", f"{name} + {k}", cast])

    def body(self, depth: int, looped: bool) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            chosen = self.rng.choices(
                [self.assign, self.store, self.branch, self.count, self.repeat, self.jump],
                [4, 3, *([2, 2, 1, 1] if depth < 4 else [0] * 4)],
            )
            chosen[0](depth, looped)

    def assign(self, depth: int, looped: bool) -> None:
        name = self.rng.choice(NAMES)
        both = f"a, b = {self.value()}, {self.value()}"
        texts = [f"{name} = {self.value()}", f"{name} += {self.rng.randrange(3)}", both]
        self.add(depth, self.rng.choices(texts, [6, 2, 1])[0])

    def store(self, depth: int, looped: bool) -> None:
        k, name = self.rng.randrange(8), self.rng.choice(NAMES)
        self.add(depth, f'B[{k}] = B[{k}] * 0.5 + T.cast({name}, "float64")')

    def test(self) -> str:
        return f"if N[{self.rng.randrange(8)}] > {self.rng.randrange(8)}:"

    def branch(self, depth: int, looped: bool) -> None:
        self.add(depth, self.test())
        self.body(depth + 1, looped)
        if self.rng.random() < 0.6:
            self.add(depth, "else:")
            self.body(depth + 1, looped)

    def fresh(self) -> str:
        self.loops += 1
        return f"i{self.loops}"

    def count(self, depth: int, looped: bool) -> None:
        name = self.rng.choice([self.fresh()] * 9 + [*NAMES])
        self.add(depth, f"for {name} in range({self.rng.choice(['3', 'p', '1, 4', 'p, 4', '0'])}):")
        self.body(depth + 1, True)

    def repeat(self, depth: int, looped: bool) -> None:
        name = self.fresh()
        self.add(depth, f"{name} = 0")
        self.add(depth, f"while {name} < {self.rng.choice(['3', 'p'])}:")
        self.add(depth + 1, f"{name} += 1")
        self.body(depth + 1, True)

    def jump(self, depth: int, looped: bool) -> None:
        if looped:
            self.add(depth, self.test())
            self.add(depth + 1, self.rng.choice(["break", "continue"]))
