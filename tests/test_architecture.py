"""The floors of the house as data, and the rules that keep imports pointing down.

A file imports only files that stand before it in FLOORS. `*` names a folder whose files are one
rank: they may import each other as long as no cycle arises. Imports for type checking alone count
too, but for the circles within a floor that CIRCLES_OF_TYPES names. A file that is not in the table
fails: enter it where it belongs, and the table of floors in metasched/README.md with it when the
floor is new.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import io
import re
import subprocess
import symtable
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Floor, budget in lines of code, files, lowest first. The floor "" holds the files directly below
# metasched/. A commit that raises a budget says in its body what it considered for deletion.
FLOORS: list[tuple[str, int, str]] = [
    ("", 1075, "errors tvm_names config files watch foreign registry hardware"),
    ("target", 660, "rates machine description suited cpu cuda"),
    (
        "ir",
        4700,
        "intern dtype scopes operators expr variables op buffer stmt func visit describe canonical "
        "equal verify_rules verify interp_ops interp_fence interp_operators interp_expr "
        "interp_lengths interp_memory interp_stmt interp_lanes interp",
    ),
    (
        "arith",
        4265,
        "bounds products linear polyhedron affine modular rules atoms prove conditions analyzer "
        "iterform itercheck iterlimit mixed_radix itermap subspace intset regions corner outside "
        "inverse indexmap specialize enumerated",
    ),
    (
        "script",
        5330,
        "hints diagnostics words doc print_expr undefined printer builder operators buffers "
        "sections indexing plain captured macro literals evaluate reader statements lives names "
        "stores scalars calls copies body parser tir ir tvm_graph tvm_json",
    ),
    ("frontend", 470, "blocks te einsum workload"),
    (
        "analysis",
        5625,
        "failure rescaling masks scan overlap instances polyhedra scope boxes threads guarded "
        "foreign added witness running cover producers binding access written guards closing block "
        "begun overwritten choice reducer updates any_order commuting continues factor loops "
        "dependence moved_reads exchange reordering sequence flops sizes",
    ),
    (
        "schedule",
        16310,
        "edit handles rng domain numbers selfcheck advice content state checks rebind "
        "foreign_order instruction constraint codec tvm_trace trace intrinsics ways primitives.* "
        "legal repeated schedule anchor plugin tensorize_mapping auto_tensorize tensorize_layout "
        "analysis",
    ),
    ("lower", 5215, "passes.* packing table cpu pipeline"),
    (
        "codegen",
        6780,
        "types signature values known_memory windows module emit exchange runs small_floats "
        "wide_division arithmetic "
        "in_memory interleaved columns overlaps places memory tiles intrinsics vectormath.* branch "
        "ops fold division clamped_cast expressions "
        "barrier parallel team transpose scan chunks reductions ordered_sums row_vectors "
        "compaction copies shifted ahead rare squares separate_steps side_by_side loops statements "
        "parameters function elf compile openmp load peak",
    ),
    (
        "runtime",
        1900,
        "timing devices guarded_memory arrays dlpack extents quick arguments parallel foreign "
        "native packing export kernel cpu rows build exported",
    ),
    (
        "space",
        7385,
        "module strides own_loops enclosing combinators tiling packing loop_kinds merging lanes "
        "lane_layout reasons modules.* generate default_schedule",
    ),
    ("postproc", 520, "*"),
    ("mutate", 330, "*"),
    (
        "measure",
        3846,
        "settings candidate priority worker worker_server pickled process workers flow tested "
        "indices "
        "given data terms task loaded_task padding sampling builder_slot samples anchor jobs "
        "reference other_sizes local replay cluster instruction_costs",
    ),
    (
        "cost",
        2390,
        "index_stride guard_fraction operations summary footprint nest transfer machine features "
        "extractor quality prior ridge trees model line guide lightgbm",
    ),
    ("kinds", 270, "table cpu"),
    ("database", 980, "record store base lookup equality replay tvm_import"),
    (
        "search",
        2740,
        "shared_queue replaying pool population phases strategy draft proposals.source "
        "proposals.* picks "
        "evolution autoscheduler annealing baselines guard learning observe run scheduler final "
        "result tasks parts",
    ),
    ("", 405, "autoschedule tune"),
    (
        "report",
        2520,
        "selftest doctor peer_op torch_ops torch_low torch_stencils numba_stencils polybench.* "
        "numba_peer torch_peer onnx_ops tvm_record "
        "peers contest "
        "bandwidth tables space progress compare history svg html",
    ),
    ("commands", 930, "*"),
    ("", 160, "cli __main__"),
]
# The two folders of script functions: an intrinsic enters itself in the schedule floor, a
# workload to the command line.
AFTER = {"intrinsics": "metasched.schedule.schedule", "workloads": "metasched.tune"}

# Lines of code of the two folders of script functions.
SCRIPT_BUDGETS = {"intrinsics": 570, "workloads": 2140}

MAX_FILE, MAX_FUNCTION = 500, 60

# Third-party package -> where it may be imported.
ALLOWED = {
    "numpy": r".*",
    "ml_dtypes": r"metasched\.ir\.dtype",
    "llvmlite": r"metasched\.codegen\..*",
    "lightgbm": r"metasched\.cost\.lightgbm",
    "pydantic": r"metasched\.(database\..*|config|schedule\.trace|measure\.cluster)",
    "rich": r"metasched\.(report\..*|cli)",
    "torch": r"metasched\.(frontend\.torch|report\.torch_peer)",
    "numba": r"metasched\.report\.(polybench\.)?numba_.*",
    "ray": r"metasched\.measure\.cluster",
}
# Modules that bring a heavy package with them: these too may be imported inside a function.
LAZY = r"metasched\.(codegen|runtime|report|database|cli|frontend\.torch).*"
LIGHTGBM = "metasched.cost.lightgbm"


@functools.cache
def product_files() -> dict[str, Path]:
    """Module name -> path, for all product code."""
    found = {}
    for top, package in (
        ("metasched", "metasched"),
        ("intrinsics", "metasched.intrinsics"),
        ("workloads", "metasched.workloads"),
    ):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            found[".".join((package, *parts))] = path
    return found


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


@functools.cache
def imports_of(name: str, where: str = "everywhere") -> set[str]:
    """The modules that product module `name` imports.

    `where` is "everywhere", "run" (all but those for type checking), "functions" (inside them).
    """
    files = product_files()
    nodes: list[ast.AST] = list(ast.walk(tree_of(files[name])))
    if where == "functions":
        functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        nodes = [inner for function in functions for inner in ast.walk(function)]
    elif where == "run":
        typed = {id(inner) for n in nodes if is_for_types(n) for inner in ast.walk(n)}
        nodes = [n for n in nodes if id(n) not in typed]
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".")[: -node.level]
                base = ".".join([*package, base] if base else package)
            for alias in node.names:
                child = f"{base}.{alias.name}"
                is_module = child in files or f"{child}.__init__" in files
                found.add(child if is_module else base)
    return {f"{m}.__init__" if f"{m}.__init__" in files else m for m in found}


@functools.cache
def ranks() -> dict[str, int]:
    """Module name -> position in the house, lowest first; files of a `*` folder share one."""
    rank: dict[str, int] = {}
    level = 0
    for floor, _, listed in FLOORS:
        prefix = f"metasched.{floor}." if floor else "metasched."
        for entry in listed.split():
            level += 1
            if entry.endswith("*"):
                folder = prefix + entry[:-1]
                for name in product_files():
                    if name.startswith(folder) and name not in rank:
                        rank[name] = level
            else:
                rank[prefix + entry] = level
        if floor:
            level += 1
            rank[f"{prefix}__init__"] = level
    for folder, before in AFTER.items():
        for name in product_files():
            if name.startswith(f"metasched.{folder}."):
                rank[name] = rank[before]
    rank["metasched.__init__"] = 0
    return rank


def test_every_file_has_its_place():
    missing = sorted(set(product_files()) - set(ranks()))
    assert not missing, f"not in the table of floors: {missing}"


def test_imports_point_down():
    rank = ranks()
    upward = []
    for name in product_files():
        for used in imports_of(name):
            if not used.startswith("metasched") or used == name or {name, used} - rank.keys():
                continue
            typed = used not in imports_of(name, "run")
            # The package's own file tells type checkers the public names, and loads none of them.
            if typed and (floor_of(used) == floor_of(name) or name == "metasched.__init__"):
                continue
            level = rank[used] - rank[name]
            if level > 0 or (level == 0 and not same_folder(name, used)):
                upward.append(f"{name} imports {used}")
    assert not upward, "\n".join(sorted(upward))


def floor_of(name: str) -> str:
    return name.split(".")[1] if name.count(".") > 1 else ""


def same_folder(a: str, b: str) -> bool:
    together = floor_of(a) in AFTER and floor_of(a) == floor_of(b)  # a folder with families
    return together or a.rpartition(".")[0] == b.rpartition(".")[0]


# Files that name each other's types, and why they cannot do without.
CIRCLES_OF_TYPES = {
    "arith analyzer": "the rules of the analyzer ask it about parts of an expression",
    "script evaluate": "comprehensions and macros evaluate their own parts",
    "target cpu": "`Target.native()` is a CPU, for type checkers too",
}


def test_no_import_cycle():
    """Imports for type checking alone count too, but for the circles that are named above."""
    files = product_files()
    hubs = {"metasched." + name.replace(" ", ".") for name in CIRCLES_OF_TYPES}
    typed = {name: imports_of(name) - imports_of(name, "run") for name in files}
    assert hubs <= set().union(*typed.values()), "a circle of types is gone: delete its row"
    typed["metasched.__init__"] = set()  # it loads none of the public names
    graph = {
        name: (imports_of(name, "run") | typed[name] - hubs) & files.keys() - {name}
        for name in files
    }
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for used in sorted(graph[name]):
                visit(used, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_third_party_packages_stay_in_their_places():
    wrong = []
    for name in product_files():
        for used in imports_of(name):
            top = used.split(".")[0]
            if top in sys.stdlib_module_names or top == "metasched":
                continue
            if not re.fullmatch(ALLOWED.get(top, "never"), name):
                wrong.append(f"{name} imports {used}")
    assert not wrong, "\n".join(wrong)


def test_imports_inside_functions_are_of_heavy_packages_only():
    wrong = []
    for name in product_files():
        for used in imports_of(name, "functions"):
            lazy = re.fullmatch(LAZY, used) and floor_of(used) != floor_of(name)
            if used.split(".")[0] not in ALLOWED and not (lazy or used == LIGHTGBM):
                wrong.append(f"{name} imports {used} inside a function")
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_the_package_is_installed():
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    found = {
        ".".join(p.parent.relative_to(ROOT).parts) for p in ROOT.glob("metasched/**/__init__.py")
    }
    top = {"metasched.intrinsics", "metasched.traces", "metasched.workloads"}
    assert listed == found | top | {"metasched.workloads.polybench"}


def sizes() -> dict[str, int]:
    """Lines of each product file."""
    return {n: len(p.read_text(encoding="utf-8").splitlines()) for n, p in product_files().items()}


def test_no_file_is_long():
    assert not {n: s for n, s in sizes().items() if s > MAX_FILE}


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    quiet = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*quiet, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree_of(path)):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if documented and ast.get_docstring(node, clean=False) is not None:
            text_of = node.body[0]
            lines.difference_update(range(text_of.lineno, text_of.end_lineno + 1))
    return len(lines)


def budgets() -> dict[str, tuple[int, list[str]]]:
    """Folder (or files directly below metasched/) -> its budget and its modules."""
    found: dict[str, tuple[int, list[str]]] = {}
    for floor, budget, listed in FLOORS:
        modules = [f"metasched.{entry}" for entry in listed.split()]
        if floor:
            modules = [n for n in product_files() if n.startswith(f"metasched.{floor}.")]
        found[floor or listed] = (budget, modules)
    for folder, budget in SCRIPT_BUDGETS.items():
        modules = [n for n in product_files() if n.startswith(f"metasched.{folder}.")]
        found[folder] = (budget, modules)
    return found


@pytest.mark.parametrize("folder", budgets())
def test_folder_keeps_its_budget(folder):
    """The budget is on code; what explains it is not discouraged."""
    budget, modules = budgets()[folder]
    spent = sum(code_lines(product_files()[name]) for name in modules)
    assert spent <= budget, f"{folder} holds {spent} lines of code, its budget is {budget}"


def test_every_listed_file_exists():
    listed = {n for n in ranks() if not n.endswith("__init__")}
    assert not listed - set(product_files())


# Files that no file imports, and how they come to be used.
FOUND_BY_NAME = {
    r"metasched\.(__main__|cli)": "the command line",
    r"metasched\.commands\.\w+": "commands/names.py lists them",
    r"metasched\.intrinsics\.\w+": "the whole folder is read",
    r"metasched\.report\.(polybench\.)?numba_\w+": "report/numba_peer names them by program",
    r"metasched\.(ir\.interp|script\.ir|space\.combinators)": "users import them",
}


def test_every_file_is_used():
    """What a file enters in a registry is there only where something imports the file."""
    files = product_files()
    used = {module for name in files for module in imports_of(name) - {name}}
    by_name = re.compile("|".join(FOUND_BY_NAME))
    idle = [
        name for name in sorted(files.keys() - used)
        if not name.endswith("__init__") and not by_name.fullmatch(name)
    ]  # fmt: skip
    assert not idle, f"no file imports {', '.join(idle)} (metasched/README.md, How to add)"


def test_no_function_is_long():
    long = []
    for name, path in product_files().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION:
                    long.append(f"{name}.{node.name}: {lines} lines")
    assert not long, "\n".join(long)


SCRIPTS = {"prim_func", "macro", "inline", "ir_module", "block_func"}


def undefined_names(path: Path) -> list[str]:
    """Names that no scope of a file defines, outside of scripts, whose names are of the dialect."""
    text = path.read_text(encoding="utf-8")
    scripts = {
        node.lineno for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        for word in node.decorator_list
        if not SCRIPTS.isdisjoint(re.findall(r"\w+", ast.unparse(word)))
    }  # fmt: skip
    top = symtable.symtable(text, str(path), "exec")
    known = {*dir(builtins), "__file__"}
    tables, found = [top], []
    for table in tables:
        if table.get_lineno() in scripts:
            continue
        tables += table.get_children()
        used = [s for s in table.get_symbols() if s.is_global() or table is top]
        known |= {s.get_name() for s in used if s.is_assigned() or s.is_imported()}
        found += [s.get_name() for s in used if s.is_referenced()]
    return sorted({*found} - known)


def test_no_test_uses_an_undefined_name(tmp_path):
    """Ruff cannot say so, as the scripts in tests use names of their dialect."""
    files = (ROOT / "tests").rglob("*.py")
    wrong = {str(p.relative_to(ROOT)): names for p in files if (names := undefined_names(p))}
    assert not wrong
    bad = tmp_path / "bad.py"
    bad.write_text("def f(x):\n    return x + missing\n")
    assert undefined_names(bad) == ["missing"]


def test_every_file_says_what_it_is_for():
    files = [*product_files().values(), *sorted((ROOT / "tests").rglob("*.py"))]
    files = [p for p in files if p.stat().st_size]  # an empty __init__.py has nothing to say
    silent = [str(p.relative_to(ROOT)) for p in files if not ast.get_docstring(tree_of(p))]
    assert not silent


def test_file_names_say_an_idea():
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [n for n in product_files() if n.rpartition(".")[2] in vague]


def test_packages_have_an_init_file():
    for path in product_files().values():
        assert (path.parent / "__init__.py").exists(), path


# Written so that this file does not contain what it looks for.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.~])/(?:work|home|root|Users)/",
    "an open end": r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b",
    "a function that is not there": r"raise NotImpl" r"ementedError",
    "a skipped test": r"mark\.(?:sk" r"ip\b|xf" r"ail)",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what):
    files = [*product_files().values(), *sorted((ROOT / "tests").rglob("*.py"))]
    files += [ROOT / "README.md", ROOT / "pyproject.toml", *(ROOT / "metasched").glob("*.md")]
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_readme_lists_the_floors_in_order():
    text = (ROOT / "metasched" / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Floors")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/ ]+)` \|", section, re.MULTILINE)
    expected = [f"{floor}/" if floor else listed for floor, _, listed in FLOORS]
    assert rows == expected


def test_import_is_light():
    code = (
        "import time; t = time.process_time(); import metasched; "
        "spent = time.process_time() - t; metasched.Schedule; import sys; "
        "heavy = {'llvmlite', 'lightgbm', 'rich', 'torch', 'scipy'} & set(sys.modules); "
        "assert not heavy, heavy; print(spent)"
    )
    shell = [sys.executable, "-W", "error", "-c", code]
    seconds = [
        float(subprocess.run(shell, check=True, capture_output=True, text=True).stdout)
        for _ in range(2)
    ]
    assert min(seconds) < 0.3


def test_public_names_exist():
    import metasched

    for name in metasched.__all__:
        assert getattr(metasched, name) is not None
    assert set(dir(metasched)) >= set(metasched.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = metasched.nothing


def test_public_names_are_those_that_type_checkers_read():
    import metasched

    (block,) = [n for n in tree_of(ROOT / "metasched" / "__init__.py").body if is_for_types(n)]
    told = {}
    for node in ast.walk(block):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("metasched."):
            told |= {alias.asname: (node.module, alias.name) for alias in node.names}
    assert told.keys() == {*metasched.__all__} - {"__version__", "te", "workloads"}
    assert metasched.workloads is importlib.import_module("metasched.workloads")
    assert metasched.te is importlib.import_module("metasched.frontend.te")
    for name, (module, attribute) in told.items():
        assert getattr(metasched, name) is getattr(importlib.import_module(module), attribute)


def test_a_users_file_is_type_checked(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import metasched as ms\n"
        "reveal_type(ms.tune(ms.parse('')))\n"
        "text: str = ms.Schedule\n"
        "ms.tune(3)\n"
        "@ms.postproc('my.limit')\n"
        "def limit(sch: ms.Schedule, target: ms.Target) -> None: ...\n"
        "@ms.mutator('my.move')\n"
        "def move(trace: ms.Trace) -> None: ...\n"
        "reveal_type(ms.Schedule(ms.parse('')).split)\n"
        "ms.Schedule(ms.parse('')).splitt\n"
        "product = ms.workloads.get('gmm').func((1, 8, 8, 8))\n"
        "reveal_type(product)\n"
        "reveal_type(ms.build(product).time)\n"
        "from metasched.script import tir as T\n"
        "@T.prim_func\n"
        "def scale(A: T.Buffer((8,))) -> None: ...  # type: ignore[valid-type]\n"
        "reveal_type(scale)\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)]
    said = subprocess.run(mypy, capture_output=True, text=True, check=False, cwd=ROOT).stdout
    lines = [line.partition("mine.py:")[2] for line in said.splitlines() if "mine.py:" in line]
    assert 'note: Revealed type is "metasched.search.result.TuneResult"' in lines[0]
    assert "Incompatible types in assignment" in lines[1] and 'type "str"' in lines[1]
    assert 'Argument 1 to "tune" has incompatible type "int"' in lines[2]
    assert lines[3].startswith("7:") and "Callable[[Trace], None]" in lines[3]
    assert "loop: metasched.schedule.handles.LoopRV, factors:" in lines[4]
    assert '"Schedule" has no attribute "splitt"' in lines[5]
    assert 'note: Revealed type is "metasched.ir.func.PrimFunc"' in lines[6]
    assert '-> metasched.runtime.timing.Timing"' in lines[7]
    assert 'note: Revealed type is "metasched.ir.func.PrimFunc"' in lines[8]
    assert len(lines) == 9


def test_the_stub_of_workloads_has_their_names_and_parameters():
    import metasched

    told = {}
    for node in tree_of(ROOT / "metasched" / "workloads.pyi").body:
        if isinstance(node, ast.AnnAssign):
            told[node.target.id] = None
        elif isinstance(node, ast.FunctionDef):
            told[node.name] = [a.arg for a in [*node.args.args, *node.args.kwonlyargs]]
    assert told.keys() | {"Workload"} == {*metasched.workloads.__all__}
    for name, parameters in told.items():
        real = getattr(metasched.workloads, name)
        assert parameters == (list(inspect.signature(real).parameters) if callable(real) else None)


def test_tune_names_the_function_whatever_was_imported_first():
    code = "import metasched.tune, metasched; assert callable(metasched.tune)"
    subprocess.run([sys.executable, "-c", code], check=True)
