"""Join what tools/gpu_check.sh left in a folder to one result file there, slice.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def count_tests(paths: list[Path], collected: list[str]) -> dict[str, object]:
    """Return the counts of JUnit files, and the names of what did not pass or did not run."""
    # pytest wrote them a moment ago
    every = [case for path in paths for case in ET.parse(path).iter("testcase")]  # noqa: S314
    cases = [case for case in every if case.get("name")]  # one that was cut short has none
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    unhappy: list[str] = []
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            unhappy.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    ran = {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}" for case in cases
    }
    return {**counts, "not_passed": unhappy, "not_run": sorted(set(collected) - ran)}


def main() -> None:
    """Write slice.json: the benchmark's form, with tests and demo beside it."""
    folder = Path(sys.argv[1])
    report = json.loads((folder / "bench.json").read_text())
    report["meta"]["command"] = "tools/gpu_check.sh OUTPUT_FOLDER"
    collected = (folder / "tests-collected.txt").read_text().splitlines()
    report["tests"] = count_tests(sorted(folder.glob("tests-*.xml")), collected)
    report["demo"] = {
        path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("demo*.json"))
    }
    (folder / "slice.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
