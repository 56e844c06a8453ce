"""Random programs over arrays whose extents are formulas of two sizes: n + 1, n // 2, n * m.

Each statement runs over one domain or two, and reads and writes arrays at places that stay inside
for all sizes, with 0 and 1 among them.
"""

from __future__ import annotations

from dataclasses import dataclass

from space.random_kinds import Draw, Text

SHAPES = {
    "V": "n,", "V1": "n + 1,", "H": "n // 2,", "U": "m,", "M": "n, m", "F": "n * m,",
    "W": "T.min(n, 7), m", "X": "2 * n,", "Y": "(n + 3) // 4, 4", "Z": "n // 2, m + 2",
}  # fmt: skip
"""The shape of each array."""
ROWS = {
    "n": {"V": ("i", "n - 1 - i"), "V1": ("i", "i + 1", "n - i"), "X": ("i", "2 * i", "i + n"),
          "M": ("i", "n - 1 - i"), "W": ("T.min(i, 6)",), "Y": ("i // 4, i % 4",)},
    "n + 1": {"V1": ("i", "n - i")},
    "1, n": {"V": ("i", "i - 1", "n - i"), "V1": ("i", "i - 1", "i + 1"), "M": ("i", "i - 1"),
             "X": ("i", "2 * i - 1")},
    "n - 1": {"V": ("i", "i + 1"), "V1": ("i + 2", "i"), "M": ("i", "i + 1"), "X": ("2 * i + 3",)},
    "n // 2": {"V": ("i", "2 * i", "2 * i + 1", "n // 2 + i"), "H": ("i", "n // 2 - 1 - i"),
               "M": ("2 * i", "2 * i + 1"), "Z": ("i",), "X": ("4 * i", "n + i")},
    "T.min(n, 7)": {"V": ("i", "n - 1 - i"), "M": ("i",), "W": ("i", "T.min(n, 7) - 1 - i"),
                    "V1": ("n - i",)},
    "2 * n": {"X": ("i", "2 * n - 1 - i"), "V": ("i // 2", "i % n"), "M": ("i % n",)},
    "(n + 3) // 4 * 4": {"Y": ("i // 4, i % 4",), "V1": ("T.min(i, n)",)},
}  # fmt: skip
"""Of each domain of a loop over i the places of an array: of a matrix, the rows."""
FLAT = {"n * m": {"F": ("i", "n * m - 1 - i"), "M": ("i // m, i % m",), "V": ("i // m",),
                  "U": ("i % m",)}}  # fmt: skip
COLUMNS = {"M": ("j", "m - 1 - j"), "W": ("j",), "U": ("j", "m - 1 - j"), "Z": ("j", "j + 2")}
"""The columns of the arrays in a loop over j of m; F takes both loops."""
TYPES = ("float32", "float32", "float64", "int32", "int64", "int8", "float16", "uint8")


@dataclass
class Wild:
    """A program in the making: the type of each array."""

    d: Draw
    types: dict[str, str]
    t: Text

    def places(self, rows: dict[str, tuple[str, ...]], columns: bool, flat: bool) -> list[str]:
        """The elements that a statement may touch."""
        found = []
        for name, firsts in rows.items():
            second = COLUMNS.get(name) if "," in SHAPES[name][:-1] and name != "Y" else None
            if flat or second is None:
                found += [f"{name}[{first}]" for first in firsts]
            elif columns:
                found += [f"{name}[{first}, {c}]" for first in firsts for c in second]
        if columns:
            found += [f"U[{c}]" for c in COLUMNS["U"]]
            found += ["F[i * m + j]", "F[j * n + i]"] if rows is ROWS["n"] else []
        return found

    def load(self, place: str, dtype: str) -> str:
        kind = self.types[place.split("[")[0]]
        if kind == dtype:
            return place
        if "float" in kind and "int" in dtype:
            return f'T.cast(T.max(T.min({place}, T.{kind}(100)), T.{kind}(0)), "{dtype}")'
        return f'T.cast({place}, "{dtype}")'

    def statement(self) -> None:
        d, flat = self.d, self.d.often(0.15)
        domain = "n * m" if flat else d.pick(*ROWS)
        rows = FLAT[domain] if flat else ROWS[domain]
        columns = not flat and d.often(0.5)
        self.t.add(1, f"for i in range({domain}):")
        depth = 2
        guards = ["i % 2 == 0", "i != n // 2", "i < 7", "i + 1 < n"]
        if columns:
            end = d.pick("m", "m", "m", "T.min(i + 1, m)", "m // 2", "T.min(n, m)")
            self.t.add(2, f"for j in range({end}):")
            depth, guards = 3, [*guards, "j <= i", "i + j < m"]
        elif not flat and d.often(0.3):
            return self.summed(rows)
        if d.often(0.25):
            self.t.add(depth, f"if {d.pick(*guards)}:")
            depth += 1
        places = self.places(rows, columns, flat)
        both = [p for p in places if "j" in p] if columns and d.often(0.6) else places
        target = d.pick(*(both or places))
        self.store(depth, target, places)

    def store(self, depth: int, target: str, places: list[str]) -> None:
        d, kind = self.d, self.types[target.split("[")[0]]
        a, b = (self.load(d.pick(*places), kind) for _ in range(2))
        value = d.pick(a, f"{a} + {b}", f"{a} - {b}", f"T.max({a}, {b})", f"{target} + {a}",
                       f"T.min({target}, {b})", f"{target} + {a} * {b}")  # fmt: skip
        self.t.add(depth, f"{target} = {value}")

    def summed(self, rows: dict[str, tuple[str, ...]]) -> None:
        """The sum or the maximum of a row, in a variable."""
        d = self.d
        kind = self.types[d.pick("V", "M", "V1")]
        vectors = [p for p in self.places(rows, False, False) if "," not in p]
        inside = [p for p in self.places(rows, True, False) if "j" in p]
        if not vectors:
            vectors = ["V1[0]"]
        value = self.load(d.pick(*inside), kind)
        form = d.pick(f"s + {value}", f"T.max(s, {value})", f"s + {value} * {value}")
        self.t.add(2, f"s = T.{kind}(0)", "for j in range(m):", f"    s = {form}")
        target = d.pick(*vectors)
        out = self.types[target.split("[")[0]]
        if kind == out:
            value = "s"
        elif "float" in kind and "int" in out:
            value = f'T.cast(T.max(T.min(s, T.{kind}(100)), T.{kind}(0)), "{out}")'
        else:
            value = f'T.cast(s, "{out}")'
        self.t.add(2, f"{target} = {d.pick(value, f'{target} - {value}')}")


def wild_extents(d: Draw) -> str:
    """A few statements over arrays of all shapes."""
    kinds = [d.pick(*TYPES) for _ in range(d.rng.choice((1, 1, 2)))]
    p = Wild(d, {name: d.pick(*kinds) for name in SHAPES}, Text([], []))
    p.t.add(1, "n = T.int32()", "m = T.int32()")
    for name, shape in SHAPES.items():
        p.t.params.append(f"arg_{name}: T.handle")
        p.t.add(1, f'{name} = T.match_buffer(arg_{name}, ({shape}), "{p.types[name]}")')
    for _ in range(d.rng.randint(1, 4)):
        p.statement()
    return str(p.t)
