"""The command line, as a shell sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pinferry import __version__, cli, doctor
from pinferry.bench import BENCHMARKS
from pinferry.bench.results import Case
from pinferry.doctor import Finding, Status
from pinferry.errors import HostMemoryLimit

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = str(Path(cli.__file__).parents[1])


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pinferry.cli", *arguments],
        env={"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_doctor_prints_what_it_found_and_a_summary() -> None:
    done = shell("doctor")
    assert done.returncode in (0, 1)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "status", "finding", "what", "to", "do"]
    assert "PyTorch" in done.stdout
    assert lines[-1].endswith("with a problem")


def test_doctor_as_json_is_nothing_but_json() -> None:
    done = shell("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["status"] == "problem" else 0)
    assert {finding["check"] for finding in report["findings"]} >= {"native core", "PyTorch"}


@pytest.mark.parametrize(
    ("status", "code"), [(Status.OK, 0), (Status.WARNING, 0), (Status.PROBLEM, 1)]
)
def test_doctor_fails_for_a_problem_and_not_for_a_warning(
    monkeypatch: pytest.MonkeyPatch, status: Status, code: int
) -> None:
    found = [Finding("made up", status, "found", "do this")]
    monkeypatch.setattr(doctor.report, "run_checks", lambda: found)
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == code
    assert "made up" in result.output


def raising(error: BaseException) -> Callable[..., int]:
    def run(**options: object) -> int:
        raise error

    return run


def test_an_error_of_pinferry_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "main", raising(HostMemoryLimit("no room: 5 of 7 bytes left")))
    monkeypatch.setattr(sys, "argv", ["pinferry", "doctor"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.err == "HostMemoryLimit: no room: 5 of 7 bytes left\n"
    assert captured.out == ""


def test_any_other_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "main", raising(ZeroDivisionError("a fault")))
    monkeypatch.setattr(sys, "argv", ["pinferry", "doctor"])
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [["doctr"], ["doctor", "--jsn"], ["doctor", "extra"]])
def test_what_does_not_exist_is_a_usage_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert "Usage" in result.output


def test_help_names_the_commands() -> None:
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    assert "doctor" in result.output


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, __version__)


def test_help_says_what_a_plot_needs() -> None:
    # Square brackets would be taken for markup, and vanish.
    assert "needs matplotlib, the extra 'bench'." in shell("trace", "--help").stdout


def test_a_device_that_does_not_exist_is_one_line_on_standard_error() -> None:
    done = shell("demo", "--device", "tpu:0", "--quiet")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("UnknownDevice: ")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(BENCHMARKS, "pinning", lambda *_: pytest.fail("it measures"))
    words = ["pinferry", "bench", "pinning", "--device", "cpu", "--json", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("InvalidArgument: the results cannot be written to")


def test_the_results_of_a_benchmark_may_go_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = Case(1.0, 2.0, "GB/s", "made up")
    monkeypatch.setitem(BENCHMARKS, "pinning", lambda *_: iter([("quick", case)]))
    monkeypatch.setattr(
        sys, "argv", ["pinferry", "bench", "pinning", "--device", "cpu", "--json", "-"]
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["cases"] == {"quick": case.to_dict()}
    assert "made up" in captured.err
    assert list(tmp_path.iterdir()) == []
