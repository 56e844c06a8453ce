"""metasched doctor: list what this machine has and lacks, and the cost of each gap."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from metasched.commands.names import HELP
from metasched.report.doctor import diagnose
from metasched.report.tables import columns


def add_to(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser("doctor", help=HELP["doctor"])
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; returns 1 when a finding that metasched cannot work without failed."""
    findings = diagnose()
    if arguments.json:
        print(json.dumps([asdict(f) for f in findings]))
    else:
        print(columns([("ok" if f.ok else "!!", f.name, f.found) for f in findings]))
        for finding in findings:
            if not finding.ok:
                print(f"!! {finding.name}: {finding.cost}")
    return 1 if any(f.fatal and not f.ok for f in findings) else 0
