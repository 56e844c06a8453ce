"""Target: the machine a program is compiled for, as one frozen value.

A target is read from this machine (`Target.native()`), from a tag (`aws/cpu/c5.9xlarge`), from a
TVM-like text (`llvm -mcpu=haswell -num-cores=4`) or from a mapping. Reading it imports no compiler:
feature names are LLVM's, from the tables of `hardware`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from metasched.errors import RegistryError, TargetError, brief
from metasched.hardware import CPU_FEATURES, KNOWN_FEATURES, UNUSED_FEATURES, VERSION_FEATURES
from metasched.registry import OF_A_PLUGIN, Registry
from metasched.target.machine import MachineModel
from metasched.tvm_names import hint

if TYPE_CHECKING:
    from metasched.target.cpu import Cpu

_ALIASES = {
    "arch": "mcpu", "mtriple": "triple", "mattr": "features", "num-cores": "num_cores",
    "thread_warp_size": "warp_size", "max_num_threads": "max_threads_per_block",
    "shared_memory_per_block": "max_shared_memory_per_block", "device": "model",
}  # fmt: skip
_IGNORED = frozenset({"keys", "host", "libs", "tag"})
_LARGEST = 1 << 48  # of every other number: the largest cache or memory that a field may name
Kind = TypeVar("Kind", bound="type[Target]")


@dataclass(frozen=True, slots=True)
class Target:
    """A machine: the features that code may use, and the numbers that schedules need.

    Each kind of machine is a subclass with fields of its own, entered by `target_kind`.

    Attributes:
        kind: name of the kind of machine.
        triple: LLVM target triple; empty where code is not made by LLVM.
        mcpu: name of the processor, for LLVM or a tool of the kind.
        features: names of what the processor has beyond the least of its architecture, sorted.
        num_cores: cores usable by this process; 0 where there are none in this sense.
        model: free text naming the device, no part of the identity.
    """

    stored: ClassVar[tuple[str, ...]] = ()
    """Fields of other kinds that the JSON of this kind holds as 0: keys of stored targets."""
    elsewhere: ClassVar[str] = ""
    """What to do for a target that is not this machine, behind the reason."""

    kind: str = ""
    triple: str = ""
    mcpu: str = ""
    features: tuple[str, ...] = ()
    num_cores: int = 1
    model: str = field(default="", compare=False)

    @classmethod
    def alone(cls) -> Target | None:
        """What the name of the kind means without options; None for its default fields."""
        return None

    @classmethod
    def completed(cls, values: dict[str, Any]) -> Target:
        """A target of these fields, whose types are checked; the class fills in what is not given.

        Raises TargetError for a value that the kind does not have.
        """
        given = values.get("features", ())
        names = given.split(",") if isinstance(given, str) else given
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise TargetError(f"target features are a list of names, not {brief(given)}")
        return cls(**{**values, "features": tuple(sorted(names))})

    def runs(self, other: Target) -> str | None:
        """None when code made for `other`, of the same kind, runs on this target, else why not."""
        if self._identity() == other._identity():
            return None
        return f"it was made for another machine: {', '.join(self.differences(other))}"

    def here(self) -> str | None:
        """None when this process can run code for this target, else the reason in words."""
        return f"there is no code generation for targets of kind {self.kind!r}"

    def machine_model(self) -> MachineModel:
        """The machine as the cost model sees it; TargetError where the kind has no such model."""
        raise TargetError(f"targets of kind {self.kind!r} have no machine model")

    def timed_here(self) -> str | None:
        """None when this process can time code for this target, else the reason in words."""
        return None

    @staticmethod
    def of(source: Target | str | Mapping[str, Any] | None = None) -> Target:
        """A target from None or "native" (this machine), a tag, a text of options, or a mapping,
        which may be JSON.

        Raises TargetError naming the unknown word and its nearest neighbours.
        """
        if isinstance(source, Target):
            return source
        if source is None or source == "native":
            return Target.native()
        if isinstance(source, str):
            return _from_text(source)
        if isinstance(source, Mapping):
            return _from_mapping(source)
        raise TargetError(
            f"a target is None, a text, a mapping or a Target, not {type(source).__name__}"
        )

    @staticmethod
    def native() -> Cpu:
        """This machine: /proc/cpuinfo's features, /sys's caches, the affinity mask's cores."""
        found: Cpu = KINDS.get("cpu").alone()  # type: ignore[assignment]
        return found

    @property
    def arch(self) -> str:
        """The instruction set: the first word of the triple."""
        return self.triple.split("-")[0]

    def has(self, *features: str) -> bool:
        """Whether all these LLVM features are there; an unknown name raises TargetError."""
        for name in features:
            if name not in self.features and name not in _all_features():
                near = near_names(name, _all_features())
                raise TargetError(f"no CPU feature is called {brief(name)}{near}")
        return all(name in self.features for name in features)

    @property
    def llvm_features(self) -> str:
        """LLVM's attribute text: each known feature switched on or off, whatever mcpu implies."""
        known = dict.fromkeys(
            (
                *KNOWN_FEATURES.get(self.arch, ()),
                *UNUSED_FEATURES.get(self.arch, ()),
                *self.features,
            )
        )
        return ",".join(f"{'+' if name in self.features else '-'}{name}" for name in known)

    @property
    def key(self) -> str:
        """A stable text that is equal for equal targets: readable head, digest of everything."""
        data = json.dumps(self._identity(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(data.encode(), digest_size=6).hexdigest()
        cores = f"/{self.num_cores}" if self.num_cores else ""
        return f"{self.kind}/{self.mcpu}{cores}/{digest}"

    def to_json(self) -> dict[str, Any]:
        """Plain data that `Target.of` reads back."""
        data = {**dict.fromkeys(self.stored, 0), **dataclasses.asdict(self)}
        data["features"] = list(self.features)
        return data

    def supports(self, other: Target) -> str | None:
        """None when code made for `other` can run on this target, else the reason in words."""
        if self.kind != other.kind:
            return (
                f"it was made for kind {other.kind!r}, this target is {self.kind!r}; "
                "name its target (`target=`, --target)"
            )
        return self.runs(other)

    def require_here(self, *, timed: bool = False) -> None:
        """Nothing when this machine can run code that is compiled for this target.

        Args:
            timed: the code is to be timed as well.

        Raises TargetError with the reason in one sentence.
        """
        reason = self.here()
        if reason is not None:
            raise TargetError(
                f"a kernel for {self.key} cannot be loaded here: {reason}{self.elsewhere}"
            )
        reason = self.timed_here() if timed else None
        if reason is not None:
            raise TargetError(f"a kernel for {self.key} cannot be timed here: {reason}")

    def differences(self, other: Target) -> list[str]:
        """What sets `other` apart from this target: one short sentence a field."""
        mine, theirs = self._identity(), other._identity()
        notes = [
            f"{name} {theirs[name]} instead of {mine[name]}"
            for name in mine
            if name != "features" and mine[name] != theirs[name]
        ]
        lacks = sorted(set(theirs["features"]) - set(mine["features"]))
        extra = sorted(set(mine["features"]) - set(theirs["features"]))
        if lacks:
            notes.append(f"features only there: {', '.join(lacks)}")
        if extra:
            notes.append(f"features only here: {', '.join(extra)}")
        return notes

    def _identity(self) -> dict[str, Any]:
        data = self.to_json()
        del data["model"]
        return data


TARGETS: Registry[Target] = Registry("target", Target)
KINDS: Registry[type[Target]] = Registry("target kind", type, package="metasched.kinds")


def target_kind(*names: str, override: bool = False) -> Callable[[Kind], Kind]:
    """Enter a subclass of Target under the names that texts and mappings call its kind by.

    Args:
        names: the first is the `kind` of its targets, the others are other words for it.
        override: replace kinds of these names.

    Raises RegistryError when a name is taken.
    """

    def enter(cls: Kind) -> Kind:
        for name in names:
            KINDS.register(name, cls, override=override)
        return cls

    return enter


def _from_text(text: str) -> Target:
    """A tag, a kind, a kind followed by options (`llvm -mcpu=haswell -num-cores=4`), or a mapping
    as JSON (`{"kind": "llvm", "mcpu": "haswell"}`)."""
    if text.lstrip().startswith("{"):
        try:
            return _from_mapping(json.loads(text))
        except json.JSONDecodeError as error:
            raise TargetError(f"target {brief(text)} is no JSON: {error}") from None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TargetError(f"target {brief(text)} cannot be read: {error}") from None
    if text in TARGETS:
        return TARGETS.get(text)
    if not words or words[0] not in KINDS:
        names = ["native", *KINDS, *TARGETS.names()]
        raise TargetError(
            f"no target is called {brief(text)}{_remedy((words or [text])[0], names)}"
        )
    if len(words) == 1:
        return KINDS.get(words[0]).alone() or _from_mapping({"kind": words[0]})
    options: dict[str, Any] = {"kind": words[0]}
    rest = iter(words[1:])
    for word in rest:
        name, sign, value = word.lstrip("-").partition("=")
        if not sign:  # -name value
            value = next(rest, "-")
        if not word.startswith("-") or (not sign and value.startswith("-")):
            raise TargetError(
                f"target {brief(text)}: {brief(word)} is no option; write -name=value"
            )
        options[name] = value
    return _from_mapping(options)


def _from_mapping(data: Mapping[str, Any]) -> Target:
    values: dict[str, Any] = {}
    if isinstance(data.get("tag"), str):
        base = _from_text(data["tag"])
        data = {**dataclasses.asdict(base), **data}
    cls = _kind_of(data.get("kind", "cpu"))
    names = [f.name for f in dataclasses.fields(cls)]
    for given, value in data.items():
        if not isinstance(given, str):
            raise TargetError(f"a target has fields by name, not {brief(given)}")
        name = _ALIASES.get(given, given.replace("-", "_"))
        if given in _IGNORED:
            continue
        if name not in names and name in cls.stored and value == 0:
            continue
        if name not in names:
            raise TargetError(
                f"a target has no {brief(given)}{near_names(given, [*names, *_ALIASES])}"
            )
        values[name] = value
    return cls.completed(_checked(cls, values))


def _kind_of(kind: Any) -> type[Target]:
    if not isinstance(kind, str) or kind not in KINDS:
        raise TargetError(f"no target kind is called {brief(kind)}{_remedy(kind, KINDS)}")
    return KINDS.get(kind)


def _checked(cls: type[Target], values: dict[str, Any]) -> dict[str, Any]:
    """The fields with their types checked, `kind` by its first name."""
    values["kind"] = KINDS.name_of(cls)
    types = {f.name: f.type for f in dataclasses.fields(cls)}
    for name, value in values.items():
        if types[name] in ("int", int):
            values[name] = _integer(name, value)
        elif name != "features" and not isinstance(value, str):
            raise TargetError(f"target field {name!r} is a text, not {brief(value)}")
    return values


def _integer(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TargetError(f"target field {name!r} is a number, not {brief(value)}") from None
    if isinstance(value, bool) or not 0 <= number <= _LARGEST or number != float(value):
        raise TargetError(
            f"target field {name!r} is a whole number from 0 to {_LARGEST}, not {brief(value)}"
        )
    return number


def changed_features(base: Iterable[str], value: Any) -> set[str]:
    """Features of a processor after LLVM's `+a,-b` or the names of a list."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
        raise TargetError(f"target features are a list of names or +a,+b, not {brief(value)}")
    found, known = set(base), _all_features()
    for word in filter(None, (w.strip() for w in words)):
        name = word.lstrip("+-")
        if word.startswith("-"):
            found.discard(name)
        elif name in known or name in VERSION_FEATURES:
            found.update(VERSION_FEATURES.get(name, (name,)))
        else:
            raise TargetError(f"no CPU feature is called {brief(name)}{near_names(name, known)}")
    return found


def _all_features() -> list[str]:
    return [name for names in KNOWN_FEATURES.values() for name in names]


def _remedy(name: object, names: Iterable[str]) -> str:
    """Names like an unknown one, or, without any, where its declaration may be."""
    if not isinstance(name, str):
        return ""
    if any(name in cpus for cpus in CPU_FEATURES.values()):
        return f"; the processor is 'llvm -mcpu={name}'"
    return near_names(name, names) or f"; {OF_A_PLUGIN}"


def near_names(name: str, names: Iterable[str]) -> str:
    return hint(name, {}, map(str, names))


def register_target(tag: str, source: Mapping[str, Any] | str, *, override: bool = False) -> Target:
    """Register a target under a tag; a tag in use raises TargetError unless `override`."""
    try:
        return TARGETS.register(tag, Target.of(source), override=override)
    except RegistryError as error:
        raise TargetError(str(error)) from None
