"""What tuning searches: the design spaces of a program, and the modules that offer them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from metasched.ir.func import PrimFunc
from metasched.schedule.domain import enumerated
from metasched.schedule.handles import BlockRV
from metasched.schedule.instruction import Entry
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.space.generate import Explains, Space, SpaceGenerator, design_spaces
from metasched.space.module import Module
from metasched.target import Target

_MOST = 100_000  # choices of one step that are counted


@dataclass(frozen=True)
class _Watched:
    """A module that notes the largest number of alternatives which it offers for each block."""

    module: Module
    offers: dict[tuple[str, str], int] = field(compare=False)

    def __call__(self, sch: Schedule, block: BlockRV) -> Any:
        name, before = sch.get(block).name, sch.mod
        found = self.module(sch, block)
        if isinstance(found, list) and any(
            getattr(one, "mod", None) is not before for one in found
        ):
            key = (self.module.name, name)
            self.offers[key] = max(len(found), self.offers.get(key, 0))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def space_data(
    name: str, func: PrimFunc, space: Space, target: Target, seed: int
) -> dict[str, Any]:
    """The design spaces of a program as plain data.

    `modules` holds, in their order, the modules that change the program, each with its block and
    its number of alternatives; other kinds of spaces have none. `choices` of a decision is None
    where there are more than 100,000.
    """
    offers: dict[tuple[str, str], int] = {}
    if isinstance(space, SpaceGenerator):
        space = replace(space, modules=tuple(_Watched(m, offers) for m in space.modules))
    traces = design_spaces(space, func, target, seed)
    notes = [*(r.text for r in space.refusals), *space.notes] if isinstance(space, Explains) else []
    return {
        "name": name,
        "modules": [{"module": m, "block": b, "alternatives": n} for (m, b), n in offers.items()],
        "notes": notes,
        "spaces": [_one(trace) for trace in traces],
    }


def _one(trace: Trace) -> dict[str, Any]:
    made = [{"step": e.kind.name, "choices": _choices(e)} for _, e in trace.sampling()]
    return {"steps": len(trace), "decisions": made, "python": trace.as_python()}


def _choices(entry: Entry) -> int | None:
    found = enumerated(entry.domain, _MOST) if entry.domain else []
    return None if found is None else len(found)


def space_text(data: dict[str, Any]) -> str:
    """The design spaces as text: comments around the steps of each space."""
    spaces = data["spaces"]
    lines = [f"# {data['name']}: {_count(len(spaces), 'design space')}"]
    lines += [
        f"# {each['module']} offers {_count(each['alternatives'], 'program')} for block "
        f"{each['block']}"
        for each in data["modules"]
    ]
    lines += [f"# {note}" for note in data["notes"]]
    for number, one in enumerate(spaces, 1):
        lines += ["", f"# space {number} of {len(spaces)}: {_size(one)}", *_steps(one)]
    return "\n".join(lines)


def _size(one: dict[str, Any]) -> str:
    text = f"{_count(one['steps'], 'step')}, {_count(len(one['decisions']), 'decision')}"
    choices = [each["choices"] for each in one["decisions"]]
    if not choices:
        return text
    product = math.prod(_MOST if n is None else n for n in choices)
    return f"{text}, {'more than ' if None in choices else ''}{product:,} combinations of choices"


def _steps(one: dict[str, Any]) -> list[str]:
    """The lines of the steps; the line of each decision ends with its number of choices."""
    left, lines = list(one["decisions"]), []
    for line in one["python"].rstrip().split("\n"):
        if left and f"sch.{left[0]['step']}(" in line:
            choices = left.pop(0)["choices"]
            line += f"  # one of {f'more than {_MOST:,}' if choices is None else f'{choices:,}'}"
        lines.append(line)
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
