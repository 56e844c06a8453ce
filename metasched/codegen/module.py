"""The text of an LLVM module: functions, declarations and constants, each added once."""

from __future__ import annotations

from metasched.codegen.signature import FIRST_ASSERT, RECORD
from metasched.codegen.types import llvm_string
from metasched.codegen.values import Val
from metasched.errors import BuildError
from metasched.ir.dtype import HANDLE
from metasched.target import Cpu, Target


class ModuleEmitter:
    """Collects the functions, declarations and constants of one LLVM module.

    Attributes:
        externs: foreign symbols that the object will need.
        messages: texts of the assertions, by return code.
        recorded: length of the failure record in 64-bit numbers, including the assertion's code.
        uses_tiles: whether an instruction uses AMX tiles.
        has_fma: whether the target has fused multiply-adds.
        multiplies_halves: whether lanes of 64 bits multiply their lower halves in one instruction.
        rounds_bfloat: whether an instruction rounds to bfloat16 as `small_floats` does.
    """

    def __init__(self, target: Target, name: str) -> None:
        if not isinstance(target, Cpu):
            raise BuildError(f"no code generation for {target.kind} targets: build for a CPU")
        self.kind = target.kind
        self.arch = target.arch
        self.cores = target.num_cores
        self.features = frozenset(target.features)
        self.has_fma = "fma" in self.features or target.arch == "aarch64"
        self.multiplies_halves = "avx2" in self.features
        self.saturates_vectors = target.arch == "aarch64"
        # AVX512-BF16 treats subnormal numbers as zero.
        self.rounds_bfloat = target.arch == "aarch64" and "bf16" in self.features
        self.vector_bits = target.vector_bits or 128
        self.vector_registers = target.vector_registers
        self.name = name
        self.declarations: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.constants: list[str] = []
        self.externs: set[str] = set()
        self.uses_tiles = False
        self.messages: list[str] = []
        self.recorded = 0
        self._functions = 0
        self.target_attribute = (
            f'nounwind "no-trapping-math"="true" "prefer-vector-width"="{self.vector_bits}" '
            f'"min-legal-vector-width"="{self.vector_bits}"'
        )

    def declare(self, name: str, signature: str, attributes: str = "") -> None:
        """Declare a foreign function or intrinsic once; another signature of the same name is an
        error."""
        line = f"declare {signature} {attributes}".rstrip()
        known = self.declarations.setdefault(name, line)
        if known != line:
            raise BuildError(f"{name} is called with two signatures: {known}; {line}")

    def fresh_function(self, base: str) -> str:
        """A new function name."""
        self._functions += 1
        return f"{base}{self._functions}"

    def text_constant(self, text: str) -> Val:
        """The address of a zero-terminated text."""
        size = len(text.encode()) + 1
        name = f"@{self.name}.text{len(self.constants)}"
        self.constants.append(f'{name} = private constant [{size} x i8] c"{llvm_string(text)}\\00"')
        return Val(name, HANDLE, 1, 0)

    def message_code(self, message: str) -> int:
        """The return code of a failed assertion with this text."""
        if message not in self.messages:
            self.messages.append(message)
        return FIRST_ASSERT + self.messages.index(message)

    def record(self, values: int) -> str:
        """The memory in which a failed assertion stores its code and `values` numbers."""
        self.recorded = max(self.recorded, 1 + values)
        return f"@{self.name}{RECORD}"

    def text(self) -> str:
        """The whole module."""
        defined = [d for n, d in self.declarations.items() if n not in self.definitions]
        kept = f"@{self.name}{RECORD} = global [{self.recorded} x i64] zeroinitializer"
        head = [*self.constants, *([kept] if self.recorded else []), *defined]
        return "\n".join([*head, *self.definitions.values(), ""])
