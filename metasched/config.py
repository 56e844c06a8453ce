"""Every setting: one typed table, read from argument > environment > pyproject.toml > default.

A setting called `build_timeout` is the argument `build_timeout=`, the environment variable
`METASCHED_BUILD_TIMEOUT` and the key `build_timeout` of `[tool.metasched]` in the pyproject.toml
of the current directory. A value that does not fit is a ConfigError that names where it stands.
"""

from __future__ import annotations

import functools
import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from metasched.errors import ConfigError, brief, words
from metasched.tvm_names import hint

PREFIX = "METASCHED_"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})
_KINDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    tuple: "a list of texts (in the environment: separated by commas)",
}


def _setting(
    default: Any, help: str, *, low: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    return field(default=default, metadata={"help": help, "low": low, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings with their values; `load` reads them, `describe` lists them."""

    target: str = _setting("native", "machine to compile for: native, a tag, or a description")
    work_dir: str = _setting("metasched-work", "folder for the database and the trace files")
    trials: int = _setting(64, "candidates measured by one tuning run", low=1)
    round_size: int = _setting(16, "candidates measured between two updates of the model", low=1)
    seed: int = _setting(0, "seed of every random choice", low=0)
    threads: int = _setting(0, "threads of a kernel; 0 means every core", low=0)
    build_workers: int = _setting(0, "build processes; 0 means one for each core", low=0)
    search_workers: int = _setting(
        0, "processes that replay candidates; 0 means one for each core, 1 this process", low=0
    )
    build_timeout: float = _setting(15.0, "seconds one candidate may take to build", low=0.01)
    run_timeout: float = _setting(10.0, "seconds one candidate may take to run", low=0.01)
    baseline_timeout: float = _setting(600.0, "seconds for the program as written", low=0.01)
    repeat_ms: float = _setting(2.5, "milliseconds one timing sample lasts at least", low=0.0)
    samples: int = _setting(9, "timing samples of one candidate", low=1)
    stop_gain: float = _setting(
        0.0, "end a task when its last rounds gained less than this share; 0 never does", low=0.0
    )
    model: str = _setting("lightgbm", "cost model that ranks candidates")
    prior: bool = _setting(True, "start the cost model from the prior that ships with the package")
    strategy: str = _setting("evolutionary", "search strategy")
    scheduler: str = _setting("gradient", "task scheduler, which says whose round is next")
    features: str = _setting("", "feature extractor; empty: the default of the target's kind")
    space: str = _setting("", "search space; empty takes the default of the target")
    database: str = _setting("sqlite", "database that keeps the records")
    observers: tuple[str, ...] = _setting((), "observers that a run calls with its events, by name")
    plugins: tuple[str, ...] = _setting((), "Python files loaded before tuning")
    cc: str = _setting("", "C compiler that links exported kernels; empty looks for cc, gcc, clang")
    check: int = _setting(0, "1 verifies the program after every schedule step", low=0)
    debug: str = _setting(
        "", "passes: print the program after each lowering pass to standard error",
        choices=("", "passes"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One row of the table of settings: what `describe` returns."""

    name: str
    variable: str
    default: Any
    value: Any
    source: str
    help: str


def load(folder: str | Path | None = None, **arguments: Any) -> Config:
    """The settings in force.

    Args:
        folder: where pyproject.toml is looked for (default: the current directory).
        arguments: explicit values by setting name; None means not given.

    Raises:
        ConfigError: an unknown setting or a value that does not fit, with its place.
    """
    return Config(**{name: pair[0] for name, pair in _resolve(folder, arguments).items()})


def describe(folder: str | Path | None = None, **arguments: Any) -> list[SettingInfo]:
    """Every setting with its value and the place the value comes from."""
    found = _resolve(folder, arguments)
    return [
        SettingInfo(
            f.name, PREFIX + f.name.upper(), f.default, *found[f.name], str(f.metadata["help"])
        )
        for f in fields(Config)
    ]


def unknown_variables() -> list[str]:
    """Environment variables that start with METASCHED_ and name no setting (misspelt ones)."""
    known = {PREFIX + f.name.upper() for f in fields(Config)}
    return sorted(v for v in os.environ if v.startswith(PREFIX) and v not in known)


def _resolve(folder: str | Path | None, arguments: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    path = Path.cwd() / "pyproject.toml" if folder is None else Path(folder) / "pyproject.toml"
    table = _read_table(path, path.stat().st_mtime_ns) if path.is_file() else {}
    names = [f.name for f in fields(Config)]
    for given, place in ((arguments, "argument"), (table, f"[tool.metasched] of {path}")):
        for name in given:
            if name not in names:
                near = hint(name, {}, names)
                raise ConfigError(f"{place}: no setting is called {brief(name)}{near}")
    found: dict[str, tuple[Any, str]] = {}
    for f in fields(Config):
        variable = PREFIX + f.name.upper()
        if arguments.get(f.name) is not None:
            raw, place = arguments[f.name], f"argument {f.name}"
        elif variable in os.environ:
            raw, place = os.environ[variable], f"environment variable {variable}"
        elif f.name in table:
            raw, place = table[f.name], f"{f.name} in [tool.metasched] of {path}"
        else:
            found[f.name] = (f.default, "default")
            continue
        found[f.name] = (_convert(raw, type(f.default), f.metadata, place), place)
    return found


@functools.lru_cache(maxsize=8)
def _read_table(path: Path, _modified: int) -> dict[str, Any]:
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (ValueError, OSError, RecursionError) as error:  # ValueError: thousands of digits too
        raise ConfigError(f"{path} cannot be read: {words(error)}") from error
    table = tool.get("metasched", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.metasched must be a table")
    return table


def _convert(raw: Any, kind: type, rules: Any, place: str) -> Any:
    """`raw` as a `kind` within the rules of its setting."""
    try:
        value = _as_text(raw, kind) if isinstance(raw, str) else _as_value(raw, kind)
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(f"{place}: {brief(raw)} is not {_KINDS[kind]}") from None
    low = rules["low"]
    if low is not None and not value >= low:
        raise ConfigError(f"{place}: {brief(raw)} is too small, the least is {low}")
    if rules["choices"] and value not in rules["choices"]:
        raise ConfigError(f"{place}: {brief(raw)} is not one of {', '.join(rules['choices'])}")
    return value


def _as_text(raw: str, kind: type) -> Any:
    if kind is bool:
        word = raw.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(raw)
        return word in _TRUE
    if kind is tuple:
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    return kind(raw)


def _as_value(raw: Any, kind: type) -> Any:
    if kind is tuple and isinstance(raw, (list, tuple)) and all(isinstance(r, str) for r in raw):
        return tuple(raw)
    if kind is float and isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return float(raw)
    if kind is str and isinstance(raw, Path):
        return str(raw)
    if type(raw) is kind:
        return raw
    raise TypeError(raw)
