"""Checks a module after a step: its rules, its round trip through text, its cached facts.

For authors of primitives (`Schedule(check=True)`, METASCHED_CHECK=1); too slow for search.
"""

from __future__ import annotations

from typing import Any

from metasched.analysis.binding import affine_binding
from metasched.analysis.block import complete, reduction, stage_pipeline
from metasched.analysis.producers import region_cover
from metasched.analysis.scope import Scope
from metasched.errors import VerifyError
from metasched.ir.equal import first_difference
from metasched.ir.func import IRModule
from metasched.ir.stmt import Block
from metasched.ir.verify import verify
from metasched.ir.visit import walk_stmts
from metasched.script.parser import parse
from metasched.script.printer import script


def check_module(mod: IRModule) -> None:
    """Raise VerifyError unless a module passes all checks.

    The module must be well formed and equal to the module that its script reads back as. Every
    cached fact of its blocks must agree with a new analysis of the module read back.
    """
    verify(mod, closed=True)
    fresh = parse(script(mod))
    assert isinstance(fresh, IRModule)
    difference = first_difference(mod, fresh)
    if difference is not None:
        text = f"the module does not read back as itself: {difference}"
        raise VerifyError(text, rule="round-trip")
    for name, func in mod.functions.items():
        if not func.is_schedulable:
            continue
        kept, again = _facts(func.root), _facts(fresh[name].root)
        for mine, theirs in zip(kept, again, strict=True):
            if mine != theirs:
                raise VerifyError(
                    f"block {mine[0]}: {mine[1]} is cached as {mine[2]!r}, a new analysis gives "
                    f"{theirs[2]!r}",
                    rule="stale-fact",
                )


def check_index(kept: Any, fresh: Any) -> None:
    """Raise VerifyError unless an index that edits have updated equals a freshly built one."""
    for table in ("parent", "loops", "blocks", "func_of"):
        if getattr(kept, table) != getattr(fresh, table):
            raise VerifyError(f"the index of {table} differs from a new one", rule="stale-index")


def _facts(root: Block) -> list[tuple[str, str, str]]:
    """(block, condition, slug of its failure) for each condition of each block."""
    found = []
    for block in walk_stmts(root):
        if not isinstance(block, Block):
            continue
        scope = Scope.of(block)
        found.append((block.name, "stage pipeline", _slug(stage_pipeline(scope))))
        for child in scope.realizes:
            name, token = child.block.name, child.token
            found += [
                (name, "complete", _slug(complete(scope, token))),
                (name, "reduction", _slug(reduction(scope, token))),
                (name, "region cover", _slug(region_cover(scope, token))),
                (name, "affine binding", _slug(affine_binding(child))),
                (name, "edges", str(sorted(e.kind.name for e in scope.incoming(token)))),
            ]
    return found


def _slug(failure: object) -> str:
    return "" if failure is None else str(getattr(failure, "slug", failure))
