"""Figures: measurements in traces/figures/*.json become pages here and README's table.

    python tests/benchmarks/render_figures.py                     write all pages and README's table
    python tests/benchmarks/render_figures.py NAME BENCH.json     first store the output of
        `metasched bench ... --json` as the table of traces/figures/NAME.json

A file holds a title, the machine and tables. A table holds its date, the commit, the command that
measured it, notes, columns as (name, unit) and rows. Units: text, shape (a list), seconds, share
(of one), ratio (the peer's time over metasched's; below 1 the peer wins).
"""

from __future__ import annotations

import datetime
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES, PAGES = ROOT / "traces" / "figures", ROOT / "tests" / "benchmarks" / "figures"
README_TABLE, README_ROWS = "operators_zen4", 13
BEGIN, END = "<!-- table: operators -->\n", "<!-- end of table -->\n"
PEERS = {"torch": "PyTorch eager", "torch-compiled": "PyTorch compiled", "numpy": "NumPy",
         "scipy": "SciPy", "numba": "Numba", "tvm": "TVM"}  # fmt: skip


def cell(value: Any, unit: str) -> str:
    """A value as text; None as a dash."""
    if value is None:
        return "-"
    if unit == "shape":
        return ",".join(map(str, value))
    if unit == "seconds":
        scale, name = next(u for u in ((1, "s"), (1e3, "ms"), (1e6, "us")) if value * u[0] >= 1)
        return f"{value * scale:.3g} {name}"
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "ratio":
        return f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"
    return str(value)


def markdown(table: dict[str, Any], rows: int | None = None) -> str:
    """The first `rows` rows of a table, or all."""
    units = [unit for _, unit in table["columns"]]
    lines = [[name for name, _ in table["columns"]], ["---"] * len(units)]
    lines += [[cell(v, u) for v, u in zip(row, units, strict=True)] for row in table["rows"][:rows]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def geometric_mean(table: dict[str, Any], columns: tuple[str, ...]) -> float:
    """Of the least ratio in each row, over the rows that have one."""
    places = [n for n, (name, _) in enumerate(table["columns"]) if name in columns]
    found = [[row[n] for n in places if row[n] is not None] for row in table["rows"]]
    logs = [math.log(min(ratios)) for ratios in found if ratios]
    return math.exp(sum(logs) / len(logs))


def page(source: dict[str, Any]) -> str:
    """One file of measurements as a page."""
    parts = [f"# {source['title']}\n\nMachine: {source['machine']}.\n"]
    for table in source["tables"]:
        notes = "".join(f"- {note}\n" for note in table["notes"])
        if any(name == "PyTorch eager" for name, _ in table["columns"]) and len(table["rows"]) > 2:
            mean = geometric_mean(table, ("PyTorch eager", "PyTorch compiled"))
            notes += f"- The better PyTorch's ratio, geometric mean: {mean:.2f}.\n"
        if any(name == "Numba" for name, _ in table["columns"]):
            mean = geometric_mean(table, tuple(PEERS.values()))
            notes += f"- The best peer's ratio, geometric mean: {mean:.2f}.\n"
        parts.append(
            f"## {table['title']}\n\n{table['date']}, {table['commit']}, `{table['command']}`\n\n"
            f"{notes}\n{markdown(table)}"
        )
    return "\n".join(parts)


def readme_with_table(text: str) -> str:
    """README with the table of the thirteen first shapes between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = load(README_TABLE)["tables"][0]
    return f"{before}{BEGIN}{markdown(table, README_ROWS)}{END}{after}"


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SOURCES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table_of(rows: list[dict[str, Any]], date: str, commit: str) -> dict[str, Any]:
    """The rows of `metasched bench --json`, one row for each operator and shape."""
    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["op"], *row["shape"]), {})[row["peer"]] = row
    peers = [p for p in PEERS if any(p in found for found in cases.values())]
    columns = [["operator", "text"], ["shape", "shape"], ["time", "seconds"],
               ["of FMA peak", "share"], *([PEERS[p], "ratio"] for p in peers)]  # fmt: skip
    lines = []
    for (op, *shape), found in cases.items():
        own = found["metasched"]
        ratios = [found[p]["ratio"] if p in found else None for p in peers]
        lines.append([op.upper(), shape, own["seconds"], own["peak_fraction"], *ratios])
    return {
        "title": "Operators", "date": date, "commit": commit,
        "command": "metasched bench ... --json",
        "notes": ["A ratio is the peer's time over metasched's; a peer that wins is bold."],
        "columns": columns, "rows": lines,
    }  # fmt: skip


def store(name: str, measured: Path) -> None:
    """Write the output of `metasched bench --json` as the only table of a file; rows of other
    operators that the file has are kept."""
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(measured.read_text(encoding="utf-8"))
    cpu = next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x)
    table = table_of(rows, datetime.date.today().isoformat(), commit.strip())
    old = load(name)["tables"][0] if (SOURCES / f"{name}.json").exists() else {}
    if old.get("columns") == table["columns"]:
        measured_now = [line[0] for line in table["rows"]]
        table["rows"] = sorted(
            table["rows"] + [line for line in old["rows"] if line[0] not in measured_now]
        )
    data = {
        "title": name.replace("_", " "), "machine": cpu.partition(":")[2].strip(),
        "tables": [table],
    }  # fmt: skip
    (SOURCES / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) == 3:
        store(sys.argv[1], Path(sys.argv[2]))
    PAGES.mkdir(exist_ok=True)
    for source in sorted(SOURCES.glob("*.json")):
        (PAGES / f"{source.stem}.md").write_text(page(load(source.stem)), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(readme_with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
