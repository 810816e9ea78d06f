"""``pinferry trace``: what it adds up, draws and refuses."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from typer.testing import CliRunner

from pinferry import PinnedArena, TransferEngine, cli
from pinferry.errors import InvalidArgument, PackageMissing
from pinferry.traces import read_trace, summarize
from pinferry.transfer.trace_file import Batch, trace_to_dict

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG\r\n\x1a\n"


def batch(direction: str, called: float, started: float | None, ended: float | None) -> Batch:
    return Batch(
        direction=direction,
        called_us=called,
        returned_us=called + 2.0,
        started_us=started,
        ended_us=ended,
        nbytes=10_000_000,
        storages=1,
        names=("x",),
        names_total=1,
    )


@pytest.fixture
def content() -> dict[str, Any]:
    return trace_to_dict(
        [
            batch("D2H", 0.0, 100.0, 300.0),
            batch("D2H", 50.0, 300.0, 500.0),
            batch("H2D", 60.0, 400.0, 900.0),
            batch("H2D", 70.0, None, None),
        ],
        device="cuda:0 (a [GPU])",
    )


@pytest.fixture
def file(content: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    return path


def test_a_trace_is_added_up(file: Path) -> None:
    summary = summarize(read_trace(file))
    out, back = summary.directions["D2H"], summary.directions["H2D"]
    assert (out.batches, out.unfinished, out.nbytes) == (2, 0, 20_000_000)
    assert (out.busy_us, out.longest_queue_us, out.host_us) == (400.0, 250.0, 4.0)
    assert out.bandwidth_gb_s == pytest.approx(50.0)
    assert (back.batches, back.unfinished, back.nbytes) == (2, 1, 10_000_000)
    assert (back.busy_us, back.longest_queue_us, back.host_us) == (500.0, 340.0, 4.0)
    assert back.bandwidth_gb_s == pytest.approx(20.0)
    assert (summary.both_us, summary.either_us, summary.both_share) == (100.0, 800.0, 0.125)


def test_a_trace_in_which_nothing_moved_is_added_up(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with (
        PinnedArena("1MiB", device="cpu") as arena,
        TransferEngine(arena) as engine,
        engine.trace(path),
    ):
        pass
    summary = summarize(read_trace(path))
    assert summary.both_share == 0.0
    assert [each.bandwidth_gb_s for each in summary.directions.values()] == [None, None]
    assert CliRunner().invoke(cli.app, ["trace", str(path)]).exit_code == 0


def test_the_command_prints_what_an_engine_has_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    x = torch.ones(2**18)
    with (
        PinnedArena("4MiB", device="cpu") as arena,
        TransferEngine(arena) as engine,
        engine.trace(path) as trace,
    ):
        for _ in range(3):
            engine.offload({"x": x})
            engine.reload()
    done = CliRunner().invoke(cli.app, ["trace", str(path)], env={"COLUMNS": "200"})
    assert (done.exit_code, done.exception) == (0, None)
    lines = done.output.splitlines()
    assert lines[0] == "trace of cpu"
    for line, direction in ((lines[2], "D2H"), (lines[3], "H2D")):
        assert line.startswith(direction)
        assert line.split()[2:5] == ["3", "3.00", "MiB"]
    busy = sum(b.ended_us - b.started_us for b in trace.batches if b.started_us and b.ended_us)
    either = summarize(read_trace(path)).either_us
    assert either <= busy + 0.1
    assert lines[4].startswith("both directions ran for 0.0% of the")


def test_the_command_tells_of_what_did_not_end(file: Path) -> None:
    done = CliRunner().invoke(cli.app, ["trace", str(file)], env={"COLUMNS": "200"})
    assert "trace of cuda:0 (a [GPU])" in done.output
    assert "1 failed, or had not ended when the trace did" in done.output
    assert "both directions ran for 12.5% of the 0.800 ms" in done.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "no trace of pinferry"),
        ("null", "no trace of pinferry"),
        ("{}", "no trace of pinferry"),
        ('{"traceEvents": []}', "no trace of pinferry"),
        ('{"traceEvents": [], "otherData": {"producer": "other"}}', "producer is 'other'"),
        ('{"traceEvents": [], "otherData": {"producer": "pinferry", "format": 2}}', "knows 1"),
        ('{"traceEvents": 5, "otherData": {"producer": "pinferry", "format": 1}}', "no list"),
        ('{"traceEvents": [5], "otherData": {"producer": "pinferry", "format": 1}}', "no object"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=says) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ts", None),
        ("ts", True),
        ("ts", float("nan")),
        ("dur", "long"),
        ("dur", -1.0),
        ("args", None),
        ("args", {"bytes": 5, "direction": "sideways"}),
        ("args", {"bytes": -5, "direction": "D2H"}),
        ("args", {"bytes": float("inf"), "direction": "D2H"}),
    ],
)
def test_a_span_that_makes_no_sense_is_refused(
    content: dict[str, Any], tmp_path: Path, key: str, value: object
) -> None:
    span = next(event for event in content["traceEvents"] if event["ph"] == "X")
    span[key] = value
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match="no trace of pinferry"):
        read_trace(path)


def test_events_of_others_are_passed_over(
    content: dict[str, Any], file: Path, tmp_path: Path
) -> None:
    content["traceEvents"] += [{"ph": "X", "cat": "kernel"}, {"ph": "i"}]
    path = tmp_path / "more.json"
    path.write_text(json.dumps(content))
    assert summarize(read_trace(path)) == summarize(read_trace(file))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidArgument, match="is no JSON"):
        read_trace(path)


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_2(
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["pinferry", "trace", str(tmp_path / name)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"InvalidArgument: {tmp_path / name} cannot be read")


def test_a_plot_without_matplotlib_says_what_to_install(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    picture = tmp_path / "lanes.png"
    done = CliRunner().invoke(cli.app, ["trace", str(file), "--plot", str(picture)])
    assert isinstance(done.exception, PackageMissing)
    assert "pip install 'pinferry[bench]'" in str(done.exception)
    assert not picture.exists()


def test_a_plot_is_a_picture(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
    picture = tmp_path / "new" / "lanes.of.a.trace"
    done = CliRunner().invoke(cli.app, ["trace", str(file), "--plot", str(picture)])
    assert (done.exit_code, done.exception) == (0, None)
    assert picture.read_bytes().startswith(PNG)


def test_a_plot_that_cannot_be_written_is_refused(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
    done = CliRunner().invoke(cli.app, ["trace", str(file), "--plot", str(tmp_path)])
    assert isinstance(done.exception, InvalidArgument)
    assert "cannot be written" in str(done.exception)
