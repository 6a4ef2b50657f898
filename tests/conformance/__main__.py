"""``python -m tests.conformance DIR``: compares asched with recorded answers."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from asched.config.registry import PluginRegistry
from tests.conformance.batch_modes import compare_modes, table
from tests.conformance.runner import results, topics_in


def main(arguments: list[str] | None = None) -> int:
    """Print the result by topic, differences and the total.

    Returns 0 if all cases agree, 1 if not, 2 without cases.
    """
    options = _parser().parse_args(arguments)
    topics = {
        topic: paths
        for topic, paths in topics_in(options.directory).items()
        if not options.topic or topic in options.topic
    }
    if not topics:
        print(f"no documents in {options.directory}", file=sys.stderr)
        return 2
    if options.compare_modes:
        print("\n".join(table([*compare_modes(topics)])))
        return 0
    registry = PluginRegistry.discover()
    passed = failed = 0
    excluded: Counter[str] = Counter()
    width = max(map(len, topics))
    for topic, paths in topics.items():
        found = list(results(topic, paths, registry))
        wrong = [result for result in found if not result.passed]
        passed += len(found) - len(wrong)
        failed += len(wrong)
        by_rule = Counter(result.rule for result in found if result.rule)
        excluded += by_rule
        under = f", {by_rule.total()} of them by rule" if by_rule else ""
        print(f"{topic:{width}}  {len(found) - len(wrong)} passed, {len(wrong)} failed{under}")
        for result in wrong[: options.cases]:
            print(f"  {result.place}")
            for line in result.differences[: options.diffs]:
                print(f"    {line}")
            if len(result.differences) > options.diffs:
                print(f"    ... and {len(result.differences) - options.diffs} more")
    if excluded:
        in_full = passed + failed - excluded.total()
        print(f"{in_full} compared in full ({in_full / (passed + failed):.1%}); by rule:")
        for rule, number in sorted(excluded.items()):
            print(f"  {rule}: {number}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR", help="documents, topics as folders")
    parser.add_argument("--topic", action="append", metavar="NAME", help="only this topic; repeat")
    parser.add_argument("--diffs", type=int, default=5, help="differences shown a case (5)")
    parser.add_argument("--cases", type=int, default=10, help="failing cases shown a topic (10)")
    parser.add_argument(
        "--compare-modes",
        action="store_true",
        help="both behaviours of batch sessions on the recorded clusters, kube-batch's → ours",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
