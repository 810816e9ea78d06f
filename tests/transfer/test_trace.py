"""Traces: what is recorded, when it is said to have run, and that a file comes out."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pinferry import PinnedArena, TransferEngine, _native
from pinferry.errors import (
    ArenaExhausted,
    DriverCallFailed,
    EngineClosed,
    InvalidArgument,
    NotOffloaded,
    TransferTimeout,
)
from pinferry.transfer.trace_file import Batch, trace_to_dict
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "trace.json"


def spans(path: Path, category: str) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("cat") == category]


def lanes(path: Path) -> dict[int, str]:
    events = json.loads(path.read_text())["traceEvents"]
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_each_move_is_a_call_a_wait_and_a_run(
    engine: TransferEngine, torch_device: str, path: Path
) -> None:
    x = random_bits(torch.float32, 5000, torch_device)
    before = storage_bits(x)
    engine.offload({"early": x})
    engine.reload()
    with engine.trace(path) as trace:
        engine.offload({"x": x})
        engine.reload({"x": x}, defer=True).wait()
        with engine.plan({"planned": x}) as plan:
            plan.offload()
            plan.reload()
    engine.offload({"late": x})
    engine.reload()
    assert storage_bits(x) == before
    moves = [(b.direction, b.nbytes, b.names, b.defer, b.error) for b in trace.batches]
    assert moves == [
        ("D2H", 20000, ("x",), False, None),
        ("H2D", 20000, ("x",), True, None),
        ("D2H", 20000, ("planned",), False, None),
        ("H2D", 20000, ("planned",), False, None),
    ]
    named = lanes(path)
    for category, where in (("host", "host calls"), ("queued", "queue"), ("running", "stream")):
        found = spans(path, category)
        assert [each["args"]["batch"] for each in found] == [0, 1, 2, 3]
        assert all(each["ph"] == "X" and each["dur"] >= 0 for each in found)
        assert all(where in named[each["tid"]] for each in found)
    assert [named[each["tid"]] for each in spans(path, "running")] == [
        "D2H copy stream",
        "H2D copy stream",
    ] * 2


def test_the_times_are_those_of_the_copies(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, path: Path
) -> None:
    x, y = torch.ones(2**18, device=torch_device), torch.ones(2**18, device=torch_device)
    with engine.trace(path) as trace:
        stream.hold()
        engine.offload({"x": x}, streams=[stream])
        queued = engine.offload({"y": y})
        with pytest.raises(TransferTimeout):
            queued.synchronize(SOON)
        held_us = (time.perf_counter_ns() - trace._began_ns) / 1e3
        stream.release()
        queued.synchronize(LATE)
        over_us = (time.perf_counter_ns() - trace._began_ns) / 1e3
    first, second = trace.batches
    assert first.started_us is not None
    assert first.ended_us is not None
    assert second.started_us is not None
    assert second.ended_us is not None
    slack_us = 500.0  # by which the clocks may be tied wrongly, on a busy machine
    assert held_us - slack_us <= first.started_us
    assert first.started_us <= first.ended_us <= second.started_us + slack_us
    assert second.ended_us <= over_us + slack_us
    assert first.called_us <= first.returned_us <= second.called_us <= held_us
    assert first.bandwidth_gb_s == pytest.approx(2**20 / (first.ended_us - first.started_us) / 1e3)
    [_, waited] = spans(path, "queued")
    assert waited["ts"] + waited["dur"] == pytest.approx(second.started_us, abs=0.01)


def test_nothing_waits_while_tracing(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, path: Path
) -> None:
    x = torch.ones(1000, device=torch_device)
    with engine.trace(path) as trace:
        stream.hold()
        offload = engine.offload({"x": x}, streams=[stream])
        reload = engine.reload(defer=True)
        assert not offload.done()
        assert not reload.done()
        assert [batch.ended_us for batch in trace.batches] == [None, None]
        stream.release()
    assert offload.done()
    assert reload.done()
    assert all(batch.ended_us for batch in trace.batches)


def test_a_trace_begins_though_the_copy_streams_are_held(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, path: Path
) -> None:
    x, trace = torch.ones(8, device=torch_device), engine.trace(path)
    stream.hold()
    rescue = threading.Timer(LATE, stream.release)
    rescue.start()
    ticket = engine.offload({"x": x}, streams=[stream])
    with trace:
        assert not ticket.done()
        rescue.cancel()
        stream.release()
    assert spans(path, "host") == []


def test_code_that_fails_leaves_what_there_is(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, path: Path
) -> None:
    x, y = torch.ones(8, device=torch_device), torch.ones(8, device=torch_device)

    def fail() -> None:
        with engine.trace(path):
            engine.offload({"x": x}).synchronize(LATE)
            stream.hold()
            engine.offload({"y": y}, streams=[stream])  # never ends within
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    stream.release()
    ended, hung = spans(path, "host")
    assert "error" not in ended["args"]
    assert "had not ended" in hung["args"]["error"]
    assert [each["args"]["names"] for each in spans(path, "running")] == [["x"]]


def test_a_call_that_fails_is_recorded_with_its_error(
    engine: TransferEngine, torch_device: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotOffloaded("made to fail")

    with engine.trace(path):
        with monkeypatch.context() as patch:
            patch.setattr("pinferry.transfer.mover.send", refuse)
            with pytest.raises(NotOffloaded):
                engine.offload({"x": torch.ones(8, device=torch_device)})
        with pytest.raises(ArenaExhausted):  # before any move
            engine.offload({"x": torch.ones(2**22, device=torch_device)})
    [call] = spans(path, "host")
    assert call["args"]["error"] == "NotOffloaded: made to fail"


def test_a_device_that_fails_is_said_after_the_file_is_written(
    engine: TransferEngine, torch_device: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def synchronize(self, _timeout: float) -> bool:
            raise DriverCallFailed("made to fail", code=700)

        def span_ms(self, _base: object) -> None:
            return None

    def move() -> None:
        with engine.trace(path) as trace:
            engine.offload({"x": torch.ones(8, device=torch_device)})
            trace._calls[0].native = Failing()  # type: ignore[assignment]

    with pytest.raises(DriverCallFailed):
        move()
    [call] = spans(path, "host")
    assert call["args"]["error"] == "DriverCallFailed: made to fail"
    assert spans(path, "running") == []


def test_the_streams_are_noted_even_of_an_iterator(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, path: Path
) -> None:
    with engine.trace(path) as trace:
        engine.offload({"x": torch.ones(8, device=torch_device)}, streams=iter([stream]))
    assert trace.batches[0].streams == (stream.handle,)
    [call] = spans(path, "host")
    assert call["args"]["streams"] == [hex(stream.handle)]
    engine.reload()


def test_only_the_first_names_are_kept(
    engine: TransferEngine, torch_device: str, path: Path
) -> None:
    states = {f"state{n}": torch.ones(8, device=torch_device) for n in range(20)}
    with engine.trace(path):
        engine.offload(states)
    [call] = spans(path, "host")
    assert call["args"]["names"] == [f"state{n}" for n in range(8)]
    assert (call["args"]["storages"], call["args"]["names_total"]) == (20, 20)


def test_an_engine_has_one_trace_at_a_time_and_a_trace_one_use(
    engine: TransferEngine, arena: PinnedArena, path: Path
) -> None:
    other = path.parent / "other.json"
    with engine.trace(path) as trace:
        with pytest.raises(InvalidArgument, match="is being traced to"), engine.trace(other):
            pass
        assert not other.exists()
        with TransferEngine(arena).trace(other):  # another engine's business
            pass
    with pytest.raises(InvalidArgument, match="was used"), trace:
        pass
    with engine.trace(path):
        pass


def test_a_file_that_cannot_be_written_is_refused_at_the_beginning(
    engine: TransferEngine, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="cannot be written"), engine.trace(tmp_path):
        pytest.fail("it began")
    assert engine.tracer is None


@pytest.mark.parametrize("path", [None, 3, [], b"trace.json", "trace\0.json"])
def test_what_names_no_file_is_refused(engine: TransferEngine, path: str) -> None:
    with pytest.raises(InvalidArgument, match="names no file"):
        engine.trace(path)


def test_a_closed_engine_is_not_traced(engine: TransferEngine, path: Path) -> None:
    engine.close()
    with pytest.raises(EngineClosed), engine.trace(path):
        pass


def test_many_copies_that_hang_are_waited_for_together(
    engine: TransferEngine, torch_device: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    class Hanging:
        def synchronize(self, timeout: float) -> bool:
            clock[0] += max(0.0, timeout)
            return False

        def span_ms(self, _base: object) -> None:
            return None

    def fail() -> None:
        with engine.trace(path) as trace:
            for n in range(30):
                engine.offload({f"x{n}": torch.ones(8, device=torch_device)})
            for call in trace._calls:
                call.native = Hanging()  # type: ignore[assignment]
            monkeypatch.setattr("pinferry.transfer.trace.time.monotonic", lambda: clock[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    monkeypatch.undo()
    assert clock[0] == pytest.approx(1.0)
    assert len(spans(path, "host")) == 30


def test_a_forked_child_leaves_the_file_to_its_parent(path: Path) -> None:
    engine = TransferEngine(PinnedArena("1MiB", device="cpu"))
    with engine.trace(path) as trace:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads run; that is the point
            child = os.fork()
        if child == 0:
            trace.__exit__(None, None, None)
            os._exit(path.stat().st_size)
        assert os.waitpid(child, 0)[1] == 0
    assert path.stat().st_size > 0


def test_nvtx_is_refused_where_there_is_no_cuda(
    engine: TransferEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidArgument, match="nvtx=True needs a GPU"):
        engine.trace(path, nvtx=True)


def test_nvtx_ranges_are_around_the_calls(
    engine: TransferEngine, torch_device: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append("end"))
    x = torch.ones(8, device=torch_device)
    with engine.trace(path, nvtx=True):
        engine.offload({"x": x})
        engine.reload()
    assert ranges == [
        "pinferry offload: 1 storages, 32 bytes",
        "end",
        "pinferry reload: 1 storages, 32 bytes",
        "end",
    ]


def test_what_waits_at_the_same_time_gets_lanes_of_its_own() -> None:
    def batch(called_us: float, started_us: float) -> Batch:
        return Batch(
            "D2H",
            called_us,
            1,
            1,
            ("x",),
            1,
            returned_us=called_us,
            started_us=started_us,
            ended_us=99.0,
        )

    content = trace_to_dict([batch(0, 10), batch(5, 20), batch(10, 30), batch(40, 35)], device="d")
    events: Any = content["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    queued = [event for event in events if event.get("cat") == "queued"]
    assert [named[event["tid"]] for event in queued] == [
        "D2H queue",
        "D2H queue 2",
        "D2H queue",
        "D2H queue",
    ]
    assert [(event["ts"], event["dur"]) for event in queued] == [
        (0, 10),
        (5, 15),
        (10, 20),
        (40, 0),
    ]
