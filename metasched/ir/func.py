"""Functions and modules: PrimFunc, IRModule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from metasched.errors import FunctionMissing, MetaschedError, brief
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import VOID, DType
from metasched.ir.expr import IntImm, Var
from metasched.ir.intern import quick
from metasched.ir.stmt import EMPTY, Block, BlockRealize, FrozenMap, Stmt, frozen
from metasched.ir.variables import free_vars, note_role
from metasched.tvm_names import MODULE, hint

Param: TypeAlias = "Buffer | Var"

LAYOUT_FREE = "layout_free_buffers"
"""The attribute that lists the positions of constant weights among the parameters."""
FINITE = "tir.finite"
"""The attribute: no element of the function's buffers is ever infinite or NaN, but for values that
a mask replaces."""
FAST_MATH = "tir.fast_math"
"""The attribute that lists the changes of float arithmetic that generated code may make."""
SIZES = "metasched.sizes"
"""The attribute that maps names of run-time extents to representative numbers; see
`analysis.sizes`."""
DATA = "metasched.data"
"""The attribute with the digest of the data that a user gave for tuning; see `measure.given`."""
LIBERTIES = {
    "reassoc": "sums and products in any order, and zeros of either sign",
    "arcp": "a division as a product with the reciprocal",
    "nnan": "no operand and no result is NaN",
}
"""The words that `FAST_MATH` may list (LLVM's words), with their meanings."""


class Printed:
    """Base of nodes that print as script text; `script.printer`, a floor above, sets the
    printer."""

    __slots__ = ()

    def script(self, name: str | None = None) -> str:
        """The text in the TensorIR dialect; `name` is the printed name of a function."""
        return repr(self)

    def show(self) -> None:
        """Print the script, as TVM's `show` does."""
        print(self)  # noqa: T201  showing is what the user asked for

    def __str__(self) -> str:
        return self.script()


@quick
class PrimFunc(Printed):
    """A function on buffers and scalars.

    Attributes:
        params: buffers (passed by pointer) and scalar variables, in calling order. Variables that
            occur only in buffer shapes or strides are bound by the arguments' shapes.
        body: the realisation of the root block for a schedulable function; any statement if
            lowered.
        attrs: `global_symbol`, `tir.noalias`, `layout_free_buffers` (the positions of constant
            weights, which a schedule may store in another layout before the kernel runs),
            `tir.finite` (see `FINITE`), `tir.fast_math` (see `liberties`), `metasched.sizes` (see
            `analysis.sizes`), ...
        ret_type: type of the returned value, void for none.
    """

    params: tuple[Param, ...]
    body: Stmt
    attrs: FrozenMap = EMPTY
    ret_type: DType = VOID

    def _made(self) -> None:
        for var in self.symbols:
            note_role(var, "symbol")

    @property
    def symbols(self) -> frozenset[Var]:
        """The scalar parameters, and the variables in the layouts of the parameters."""
        found = {p for p in self.params if isinstance(p, Var)}
        for buffer in self.buffers:
            for part in (*buffer.shape, *buffer.strides, buffer.elem_offset):
                if part is not None and type(part) is not IntImm:
                    found |= free_vars(part)
        return frozenset(found)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffer parameters in order."""
        return tuple(p for p in self.params if isinstance(p, Buffer))

    @property
    def constants(self) -> tuple[Buffer, ...]:
        """The parameters marked as constant weights, in the order of the mark."""
        marked = (self.params[i] for i in self.attrs.get(LAYOUT_FREE, ()))
        return tuple(p for p in marked if isinstance(p, Buffer))

    @property
    def liberties(self) -> tuple[str, ...]:
        """The words of `LIBERTIES` that the function allows by `FAST_MATH`, in order.

        Raises MetaschedError for other words.
        """
        given = self.attrs.get(FAST_MATH, "")
        words = given.split() if isinstance(given, str) else [str(given)]
        unknown = [word for word in words if word not in LIBERTIES]
        if unknown:
            raise MetaschedError(
                f"{FAST_MATH} is {brief(given)}; it takes words of "
                f"{', '.join(f'{name} ({what})' for name, what in LIBERTIES.items())}: write "
                f"those that you allow instead of {brief(unknown[0])}, such as "
                f'T.func_attr({{"{FAST_MATH}": "reassoc arcp"}})'
            )
        return tuple(word for word in LIBERTIES if word in words)

    @property
    def root(self) -> Block:
        """The root block of a schedulable function."""
        if not isinstance(self.body, BlockRealize):
            raise TypeError("the function has no root block (it is lowered already)")
        return self.body.block

    @property
    def is_schedulable(self) -> bool:
        return isinstance(self.body, BlockRealize)

    def with_body(self, body: Stmt) -> PrimFunc:
        return PrimFunc(self.params, body, self.attrs, self.ret_type)

    def with_attr(self, key: str, value: Any) -> PrimFunc:
        attrs = frozen({**self.attrs, key: value})
        return PrimFunc(self.params, self.body, attrs, self.ret_type)

    if TYPE_CHECKING:

        def specialize(self, values: Mapping[Any, int]) -> PrimFunc:
            """This function with numbers for variables; `arith.specialize` enters the method."""


@dataclass(frozen=True, slots=True, eq=False)
class IRModule(Printed, Mapping[str, PrimFunc]):
    """Functions by name, in order."""

    functions: FrozenMap
    attrs: FrozenMap = EMPTY

    if not TYPE_CHECKING:  # type checkers must still refuse unknown names

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a module has no {name!r}{hint(name, MODULE)}")

    @staticmethod
    def of(source: PrimFunc | Mapping[str, PrimFunc]) -> IRModule:
        """Make a module from a function (under the key "main") or a mapping of names to functions.

        Raises MetaschedError for anything else.
        """
        if isinstance(source, IRModule):
            return source
        if isinstance(source, PrimFunc):
            return IRModule(FrozenMap({"main": source}))
        if not isinstance(source, Mapping) or not all(
            isinstance(func, PrimFunc) for func in source.values()
        ):
            raise MetaschedError(
                "a program is a PrimFunc, an IRModule or a mapping of names to PrimFuncs, not "
                f"{type(source).__name__} {source!r:.40}"
            )
        return IRModule(FrozenMap(dict(source)))

    def with_func(self, name: str, func: PrimFunc) -> IRModule:
        return IRModule(FrozenMap({**self.functions, name: func}), self.attrs)

    def __getitem__(self, name: str) -> PrimFunc:
        try:
            return self.functions[name]  # type: ignore[no-any-return]
        except KeyError:
            there = ", ".join(self.functions)
            raise FunctionMissing(f"the module has no function {name!r:.40}: {there}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other
