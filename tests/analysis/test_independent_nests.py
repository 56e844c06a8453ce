"""Random nests of constant extents: loops are refused if and only if iterations conflict."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from oracle import check_numbers

from metasched.errors import ScheduleError
from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse


@dataclass
class Nest:
    """A store under loops and its reads of the same buffer, as text over `v0`, `v1`, ..."""

    extents: list[int]
    bindings: list[tuple[str, int]]
    write: list[str]
    reads: list[list[str]]
    predicate: str = "True"

    def points(self) -> Iterator[tuple[tuple[int, ...], list[tuple[tuple[int, ...], bool]]]]:
        """Each iteration with the elements it touches, and whether it writes them."""
        for values in itertools.product(*map(range, self.extents)):
            env = {f"i{k}": x for k, x in enumerate(values)}
            env |= {f"v{k}": eval(text, {}, env) for k, (text, _) in enumerate(self.bindings)}
            touched = [(self.write, True), *((read, False) for read in self.reads)]
            found = [(tuple(eval(i, {}, env) for i in at), writes) for at, writes in touched]
            yield values, found if eval(self.predicate, {}, env) else []

    def func(self) -> PrimFunc:
        whole = Nest(self.extents, self.bindings, self.write, self.reads)
        elements = [element for _, touched in whole.points() for element, _ in touched]
        shape = [max(column) + 1 for column in zip(*elements, strict=True)]
        lines = ["@T.prim_func", f"def main(A: T.Buffer({tuple(shape)}, 'int32')):"]
        for k, extent in enumerate(self.extents):
            lines.append(f"{'    ' * (k + 1)}for i{k} in range({extent}):")
        indent = "    " * (len(self.extents) + 1)
        lines.append(f"{indent}with T.block('B'):")
        for k, (text, extent) in enumerate(self.bindings):
            lines.append(f"{indent}    v{k} = T.axis.spatial({extent}, {text})")
        lines.append(f"{indent}    T.where({self.predicate})")
        own = " + ".join(f"v{k} * {3 + 5 * k}" for k in range(len(self.bindings)))
        parts = [own, *(f"A[{', '.join(at)}] * {k + 2}" for k, at in enumerate(self.reads))]
        lines.append(f"{indent}    A[{', '.join(self.write)}] = {' + '.join(parts)}")
        return parse("\n".join(lines))


def index(r: random.Random, extents: dict[str, int]) -> str:
    names = list(extents)
    first, second = r.choice(names), r.choice(names)
    step = extents[second]
    kind = r.randrange(5)
    if kind == 0:
        return f"{first} * {r.choice([1, 1, 2, 3])} + {r.choice([0, 0, 1, 2])}"
    if kind == 1:
        return f"{extents[first] - 1 + r.choice([0, 1])} - {first}"
    if kind == 2:
        return f"{first} * {r.choice([1, 2, step, step, step + 1])} + {second}"
    divided = f"({first} * {step} + {second})" if kind == 3 else first
    return f"{divided} {r.choice(['//', '%'])} {r.choice([2, 3, step])}"


def nest(seed: int) -> Nest:
    r = random.Random(seed)
    extents = [r.randint(2, 5) for _ in range(r.randint(1, 3))]
    bindings = [(f"i{k}", n) for k, n in enumerate(extents)]
    if len(extents) > 1 and r.random() < 0.3:
        bindings[:2] = [(f"i0 * {extents[1]} + i1", extents[0] * extents[1])]
    own = {f"v{k}": n for k, (_, n) in enumerate(bindings)}
    dims = range(r.randint(1, 2))
    write = [index(r, own) for _ in dims]
    reads = [
        write if r.random() < 0.3 else [index(r, own) for _ in dims]
        for _ in range(r.choice([0, 1, 1, 2]))
    ]
    made = Nest(extents, bindings, write, reads)
    if r.random() < 0.3:
        loops = [f"i{r.randrange(len(extents))}" for _ in range(2)]
        made.predicate = f"{loops[0]} * {r.choice([1, 2])} + {loops[1]} < {r.randint(1, 8)}"
    return made


def meet(made: Nest, loop: int, lanes: bool = False) -> bool:
    """Whether two iterations of a loop, in one iteration of the outer loops, touch one element.

    With `lanes`, a read before the write does not count: lanes load before they store.
    """
    by: dict[object, set[tuple[int, bool]]] = defaultdict(set)
    for values, touched in made.points():
        for element, writes in touched:
            by[values[:loop], element].add((values[loop], writes))
    return any(
        x != y and (one or other) and not (lanes and one != other and (x < y) == other)
        for users in by.values()
        for (x, one), (y, other) in itertools.product(users, users)
    )


def reversed_by(made: Nest, order: tuple[int, ...]) -> bool:
    """Whether another order of the loops exchanges two iterations that touch one element."""
    before: dict[object, list[tuple[tuple[int, ...], bool]]] = defaultdict(list)
    for values, touched in made.points():
        rank = tuple(values[k] for k in order)
        for element, writes in touched:
            if any(rank < r and (writes or other) for r, other in before[element]):
                return True
        for element, writes in touched:
            before[element].append((rank, writes))
    return False


def accepted(sch: Schedule, step: str, *loops: int) -> bool:
    sch = sch.copy()
    handles = sch.get_loops("B")
    try:
        getattr(sch, step)(*(handles[k] for k in loops))
    except ScheduleError as error:
        assert error.reason in ("carried-dependence", "reversed-dependence")
        return False
    return True


@pytest.mark.parametrize("start", range(0, 160, 40))
def test_dependence_is_exact_for_small_nests(start: int) -> None:
    for seed in range(start, start + 40):
        made = nest(seed)
        sch = Schedule(made.func())
        count = len(made.extents)
        for k in range(count):
            assert accepted(sch, "parallel", k) != meet(made, k), (seed, k)
        lanes = accepted(sch, "vectorize", count - 1)
        assert not meet(made, count - 1, True) if lanes else meet(made, count - 1), seed
        for order in itertools.permutations(range(count)):
            if order != tuple(range(count)):
                assert accepted(sch, "reorder", *order) != reversed_by(made, order), (seed, order)


TWO = [("i0", 3), ("i1", 2)]
FUSED = [("i0 * 5 + i1", 10)]
FOUND = {
    "quotients of one iterator": (
        Nest([5, 2], [("i0 * 2 + i1", 10)], ["v0 // 3", "v0 // 2"], [["v0 // 3", "v0 // 2"]]),
        0,
    ),
    "indices that never agree": (
        Nest([3, 2], TWO, ["v1 * 3 + v0", "v0 * 3"], [["v0 + v1", "(v0 * 3 + v1) % 3"]]),
        0,
    ),
    "a transposed read that only meets itself": (
        Nest([3, 2], TWO, ["v0 * 2 + v1"], [["v1 * 3 + v0"], ["v0 * 2 + v1"]]),
        1,
    ),
    "a predicate that leaves one iteration": (
        Nest([2, 5], FUSED, ["v0 + 1"], [["v0 // 2"]], "i1 * 2 < 1"),
        0,
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_small_nests_that_need_enumeration(name: str) -> None:
    made, loop = FOUND[name]
    assert not meet(made, loop)
    func = made.func()
    sch = Schedule(func, check=True)
    sch.parallel(sch.get_loops("B")[loop])
    check_numbers(func, sch.mod, compiled=True)
