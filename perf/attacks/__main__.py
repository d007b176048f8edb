"""The command line: run the attacks, print a table, write build/perf/attacks.json."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from perf.attacks.broker import ATTACKER_ADDRESS, OTHER_ADDRESS
from perf.attacks.starts import START_ATTACKS
from perf.attacks.table import ATTACKS
from perf.attacks.trial import NICE, Result, Span, Trial
from perf.brokers import new_directory
from perf.machine import BUILD_DIR, BenchError, MissingToolError, build_directory, machine_line

MB: Final = 1e6
HEAD: Final = (
    "| attack | sent | memory before, peak, after | limit, share of it | gauge, accounted "
    "| p50, p99, max alone, ms | beside | gap | lost | |\n|---|---|---|---|---|---|---|---|---|---|"
)


def row(result: Result) -> str:
    """One line of the table."""
    alone, beside = result.alone, result.beside
    memory = (result.before_bytes, result.peak_bytes, result.after_bytes)
    cells = (
        result.name,
        f"{result.sent_bytes / MB:,.3g} MB",
        ", ".join(f"{each / MB:,.0f}" for each in memory),
        f"{result.limit_bytes / MB:,.0f}, {result.peak_bytes / result.limit_bytes:.2f}",
        f"{result.gauge_ratio:.2f}, {result.accounted_bytes / max(1, result.peak_bytes):.2f}",
        f"{alone.p50_ms:.1f}, {alone.p99_ms:.1f}, {alone.max_ms:.0f}",
        f"{beside.p50_ms:.1f}, {beside.p99_ms:.1f}, {beside.max_ms:.0f}",
        f"{result.gap_s * 1e3:,.0f}",
        str(result.lost),
        _verdict(result),
    )
    return "| " + " | ".join(cells) + " |"


def _verdict(result: Result) -> str:
    found = list(result.misses)
    if result.is_control:
        found.insert(0, f"control: p99 {result.p99_ratio:.1f}x")
    return "; ".join(found) or (f"pass, {result.p99_ratio:.1f}x" if result.is_flood else "pass")


def run(options: argparse.Namespace) -> bool:
    """Measure and print; returns whether everything is as it must be."""
    machine = machine_line()
    print(f"{machine}, load {os.getloadavg()[0]:.1f}\n\n{HEAD}")
    began_s = time.monotonic()
    results: list[dict[str, Any]] = []
    misses = 0
    source = ATTACKER_ADDRESS if options.one_address else OTHER_ADDRESS
    span = Span(options.seconds, options.rounds, options.nice, source)
    with build_directory() as directory:
        for attack in ATTACKS:
            if options.only and not any(name in attack.name for name in options.only):
                continue
            with new_directory(directory) as place:
                try:
                    result = Trial(attack, place, span).run()
                except BenchError as error:
                    print(f"| {attack.name} | {error} |", flush=True)
                    misses += 1
                    continue
            print(row(result), flush=True)
            for note in result.notes:
                print(f"    {attack.name}: {note}", file=sys.stderr)
            results.append(result.document())
            misses += bool(result.misses)
        starts = run_starts(directory, options)
    misses += sum(not each["is_right"] for each in starts)
    document = {"machine": machine, "attacks": results, "starts": starts}
    (BUILD_DIR / "attacks.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{misses} missed, {time.monotonic() - began_s:.0f} s")
    return not misses


def run_starts(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The attacks on the start."""
    found: list[dict[str, Any]] = []
    for attack in START_ATTACKS:
        name = attack.__name__.replace("_", "-")
        if options.only and not any(each in name for each in options.only):
            continue
        if not found:
            print("\n| attack on the start | what happened | |\n|---|---|---|")
        with new_directory(directory) as place:
            outcome, is_right = attack(place)
        print(f"| {name} | {outcome} | {'pass' if is_right else 'MISSED'} |", flush=True)
        found.append({"name": name, "outcome": outcome, "is_right": is_right})
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="perf.attacks", description=__doc__)
    parser.add_argument("--only", nargs="+", help="attacks whose names contain one of these")
    parser.add_argument("--seconds", type=float, default=2, help="of a round of a flood (2)")
    parser.add_argument("--rounds", type=int, default=4, help="of a flood, and as long alone (4)")
    parser.add_argument("--nice", type=int, default=NICE, help=f"of the attackers ({NICE})")
    parser.add_argument(
        "--one-address", action="store_true", help="the good client has that of the attackers"
    )
    parser.add_argument("--list", action="store_true", help="show the attacks")
    options = parser.parse_args()
    if options.list:
        what = {attack.name: attack.run.__doc__ for attack in ATTACKS}
        what |= {each.__name__.replace("_", "-"): each.__doc__ for each in START_ATTACKS}
        print("| attack | what it does |\n|---|---|")
        for name, text in what.items():
            print(f"| {name} | {(text or '').strip()} |")
        return 0
    try:
        return 0 if run(options) else 1
    except (BenchError, MissingToolError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
