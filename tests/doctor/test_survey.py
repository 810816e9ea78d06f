"""The survey as a whole: its checks, its table, its exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pinferry import doctor
from pinferry.doctor import Check, Finding, Status, exit_code, render, run_checks, to_dict
from pinferry.doctor.findings import worst_status
from pinferry.doctor.gpu import (
    check_driver,
)
from pinferry.doctor.host import (
    check_platform,
)
from pinferry.doctor.report import CHECKS
from pinferry.states import nvml
from tests.doctor.fakes import FakeNative, arena_class, fake_torch, module, only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType


def fails() -> Iterator[Finding]:
    yield Finding("broken", Status.OK, "found before it broke")
    raise ZeroDivisionError("seven by zero")


def fine() -> list[Finding]:
    return [Finding("fine", Status.OK, "all well")]


def test_a_check_that_fails_is_a_problem_and_stops_no_other() -> None:
    before, failure, after = run_checks([Check("broken", fails), Check("fine", fine)])
    assert before.finding == "found before it broke"
    assert (failure.check, failure.status) == ("broken", Status.PROBLEM)
    assert "ZeroDivisionError: seven by zero" in failure.finding
    assert after == fine()[0]


WITHOUT_NATIVE = """
import sys
sys.modules["pinferry._native"] = None
from pinferry.doctor import main
sys.exit(main(json=True))
"""


def test_without_the_native_core_the_survey_is_made_and_points_to_it() -> None:
    survey = subprocess.run(
        [sys.executable, "-c", WITHOUT_NATIVE], capture_output=True, text=True, check=False
    )
    assert survey.returncode == 1, survey.stderr
    findings = {found["check"]: found for found in json.loads(survey.stdout)["findings"]}
    assert "pinferry._native cannot be imported" in findings["native core"]["finding"]
    assert findings["huge pages"]["status"] != "problem"
    for check in ("host memory", "CUDA driver", "arena"):
        assert findings[check]["status"] == "problem"
        assert findings[check]["advice"] == "Solve the problem of the native core first."


@pytest.mark.parametrize("native_missing", [False, True])
def test_the_whole_survey_runs_on_this_machine_and_every_finding_says_something(
    monkeypatch: pytest.MonkeyPatch, native_missing: bool
) -> None:
    if native_missing:
        monkeypatch.setitem(sys.modules, "pinferry._native", None)
    findings = run_checks()
    assert {"platform", "processors", "host memory", "huge pages"} <= {
        finding.check for finding in findings
    }
    assert all(finding.finding for finding in findings)
    assert all(finding.advice for finding in findings if finding.status is not Status.OK)
    assert exit_code(findings) == 1 or not native_missing


def test_a_machine_without_a_gpu_has_no_problem(
    monkeypatch: pytest.MonkeyPatch, install: Callable[[ModuleType], None], tmp_path: Path
) -> None:
    install(FakeNative(devices=0, status="libcuda.so.1 not found", version=None))
    install(module("pinferry.pool", PinnedArena=arena_class({"cpu": ("unpinned", "")})))
    install(module("pinferry.transfer", __path__=[]))
    install(module("pinferry.transfer.bridge", bridge_status=lambda: ("ok", "built")))
    install(fake_torch(build=None))
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(nvml, "nvml_status", lambda: "no library")
    monkeypatch.setattr(nvml, "nvml_devices", list)
    needs_root = {"host memory", "processors", "huge pages", "CUDA driver"}
    findings = run_checks(check for check in CHECKS if check.name not in needs_root)
    findings += check_driver(root=tmp_path)
    assert [finding for finding in findings if finding.status is Status.PROBLEM] == []
    assert exit_code(findings) == 0


def test_the_platform_is_named() -> None:
    finding = only(check_platform())
    assert finding.status is Status.OK
    assert "Linux" in finding.finding


@given(st.lists(st.sampled_from(list(Status))))
def test_the_exit_code_is_1_exactly_if_anything_is_a_problem(statuses: list[Status]) -> None:
    findings = [Finding("any", status, "text") for status in statuses]
    assert exit_code(findings) == (1 if Status.PROBLEM in statuses else 0)
    expected = Status.WARNING if Status.WARNING in statuses else Status.OK
    assert worst_status(findings) is (Status.PROBLEM if Status.PROBLEM in statuses else expected)
    assert to_dict(findings)["status"] == worst_status(findings).value


def test_the_table_shows_text_in_brackets_as_it_is() -> None:
    findings = [
        Finding("huge pages", Status.WARNING, "always [madvise] [/red]", "see [link]"),
        Finding("platform", Status.OK, "fine"),
    ]
    output = io.StringIO()
    render(findings, Console(file=output, width=120))
    for part in ("always [madvise] [/red]", "see [link]", "1 ok, 1 with a warning, 0 with a"):
        assert part in output.getvalue()


@pytest.mark.parametrize(("status", "code"), [(Status.WARNING, 0), (Status.PROBLEM, 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_writes_its_findings_and_returns_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: Status,
    code: int,
    as_json: bool,
) -> None:
    found = Finding("huge pages", status, "always madvise [never]", "echo")
    monkeypatch.setattr("pinferry.doctor.report.run_checks", lambda: [found])
    assert doctor.main(json=as_json) == code
    output = capsys.readouterr().out
    if as_json:
        assert json.loads(output) == {"status": status.value, "findings": [found.to_dict()]}
    else:
        assert "always madvise [never]" in output
