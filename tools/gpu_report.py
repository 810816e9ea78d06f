"""Join what tools/gpu_check.sh left in a folder to one result file there, slice.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def count_tests(paths: list[Path]) -> dict[str, object]:
    """Return the counts of JUnit files, and the names of what did not pass."""
    # pytest wrote them a moment ago
    cases = [case for path in paths for case in ET.parse(path).iter("testcase")]  # noqa: S314
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
    return {**counts, "not_passed": unhappy}


def main() -> None:
    """Write slice.json: the benchmark's form, with tests and demo beside it."""
    folder = Path(sys.argv[1])
    report = json.loads((folder / "bench.json").read_text())
    report["meta"]["command"] = "tools/gpu_check.sh OUTPUT_FOLDER"
    report["tests"] = count_tests(sorted(folder.glob("tests-*.xml")))
    report["demo"] = {
        path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("demo*.json"))
    }
    (folder / "slice.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
