"""The demo: equal runs are told equal, and everything that goes wrong is told."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rich.console import Console

import pinferry
from pinferry.demo import DemoOptions, main, options, prepare, resolve, run_experiment
from pinferry.demo.access import check_access
from pinferry.demo.comparison import compare
from pinferry.demo.determinism import threads_for
from pinferry.demo.digest import checksum, state_digest
from pinferry.demo.display import LiveDisplay
from pinferry.demo.phases import RunResult
from pinferry.demo.shape import choose_shape
from pinferry.demo.tables import sparkline
from pinferry.demo.text import load_corpus
from pinferry.demo.training import Trainee
from pinferry.errors import (
    ArenaExhausted,
    InvalidArgument,
    InvalidSize,
    ReclaimShortfall,
    UnknownDevice,
)
from pinferry.pool.host_memory import HostHeadroom

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

TINY = DemoOptions(device="cpu", params=20_000, cycles=2, steps=2, quiet=True)


@pytest.fixture(autouse=True, scope="module")
def _few_characters() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(options, "_ON_CPU", replace(options._ON_CPU, new_tokens=10, text_bytes=12_000))
    patch.setattr(options, "_ON_CUDA", replace(options._ON_CUDA, new_tokens=10, text_bytes=12_000))
    with patch.context():
        yield
    patch.undo()


def run_to_json(where: Path, asked: DemoOptions = TINY) -> tuple[int, dict[str, Any]]:
    code = main(replace(asked, json=where))
    found: dict[str, Any] = json.loads(where.read_text())
    return code, found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    code, found = run_to_json(tmp_path_factory.mktemp("demo") / "found.json")
    assert code == 0
    return found


def test_a_run_with_offload_equals_the_control_run_to_the_bit(found: dict[str, Any]) -> None:
    control, offloaded = found["control"], found["offloaded"]
    assert found["ok"]
    assert found["equal"]
    assert found["failures"] == []
    assert control["losses_hex"] == offloaded["losses_hex"]
    assert control["losses_hex"] == [loss.hex() for loss in control["losses"]]
    assert control["texts"] == offloaded["texts"]
    assert control["digests"] == offloaded["digests"]
    assert control["tensors"] == offloaded["tensors"]


def test_every_batch_has_a_loss_and_every_cycle_its_texts(found: dict[str, Any]) -> None:
    # Two cycles of two steps and a begun one, then one step and a begun one.
    assert len(found["control"]["losses"]) == 2 * 3 + 2
    assert [len(texts) for texts in found["control"]["texts"]] == [4, 4, 4]
    assert found["sample"] == found["offloaded"]["texts"][-1][0]


def test_the_json_tells_each_phase_with_bytes_rates_and_memory(found: dict[str, Any]) -> None:
    phases = found["phases"]
    cycle = ["train", "offload", "generate", "reload"]
    assert [p["kind"] for p in phases] == [*cycle, *cycle, "offload", "reload", "train", "generate"]
    sizes = found["arena"]["state_bytes"]
    for phase in phases:
        assert phase["seconds"] > 0
        assert phase["before"]["rss_bytes"] > 0
        assert phase["moved_bytes"] == sum(sizes[name] for name in phase["categories"])
        if phase["moved_bytes"]:
            rate = phase["moved_bytes"] / phase["copy_ms"] / 1e6
            assert phase["bandwidth_gb_s"] == pytest.approx(rate)
    assert phases[1]["categories"] == ["optim_states", "lp_grads"]
    assert phases[8]["categories"] == ["optim_states", "lp_params", "lp_grads", "buffers"]


def test_the_json_holds_the_reclaim_reports_and_what_it_was_run_on(found: dict[str, Any]) -> None:
    assert [reclaim["verified"] for reclaim in found["reclaims"]] == [True, True, True]
    sizes = found["arena"]["state_bytes"]
    assert found["reclaims"][-1]["report"]["expected_bytes"] == sum(sizes.values())
    assert found["arena"]["blocks"] == 0
    assert found["options"]["seed"] == 0
    assert found["options"]["params"] == 20_000
    assert found["model"]["parameters"] == pytest.approx(20_000, rel=0.1)
    assert found["versions"]["torch"] == torch.__version__
    assert found["device_name"]


def test_the_arena_is_little_larger_than_the_state(found: dict[str, Any]) -> None:
    state = sum(found["arena"]["state_bytes"].values())
    assert state < found["arena"]["capacity_bytes"] <= state * 1.02 + 2**20 + 512 * 200


def test_access_to_what_is_away_is_refused_by_name(found: dict[str, Any]) -> None:
    moment, weights = found["named_errors"]
    assert moment["ok"]
    assert moment["named"] == "optimizer.state[0].exp_avg"
    assert moment["named"] in moment["error"]
    assert weights["ok"]
    assert "view" in weights["access"]
    assert weights["named"] == "model.embedding.weight"


@pytest.mark.parametrize("category", ["optim_states", "lp_grads", "lp_params", "buffers"])
def test_a_reload_that_changes_one_bit_is_found(
    category: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reload = pinferry.StateOffloader.reload

    def corrupt(
        self: pinferry.StateOffloader, include: Iterable[str] | None = None
    ) -> pinferry.Ticket:
        ticket = reload(self, include)
        ticket.synchronize()
        for entry in list(self.discover().only(category))[-1:]:
            entry.storage[0] ^= 1
        return ticket

    monkeypatch.setattr(pinferry.StateOffloader, "reload", corrupt)
    code, found = run_to_json(tmp_path / "found.json")
    assert code == 1
    assert not found["ok"]
    assert not found["equal"]
    assert "differ" in " ".join(found["failures"])
    assert "failed: " in capsys.readouterr().err


def test_memory_that_does_not_come_back_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fall_short(self: pinferry.ReclaimReport, tolerance_bytes: int | None = None) -> None:
        raise ReclaimShortfall("5 of 9 bytes came back")

    monkeypatch.setattr(pinferry.ReclaimReport, "verify", fall_short)
    code, found = run_to_json(tmp_path / "found.json")
    assert code == 1
    assert found["equal"]
    assert found["reclaims"][0]["shortfall"] == "5 of 9 bytes came back"
    assert any("5 of 9 bytes" in failure for failure in found["failures"])


def test_an_access_that_is_not_refused_is_a_failure() -> None:
    assert "raised nothing" in (check_access("x.sum()", lambda: None, ["x"]).failure or "")


def test_an_error_that_names_no_offloaded_state_is_a_failure() -> None:
    def refuse() -> None:
        raise RuntimeError("y is offloaded")

    assert "names no offloaded state" in (check_access("x.sum()", refuse, ["x"]).failure or "")
    assert check_access("y.sum()", refuse, ["y"]).failure is None


def test_what_went_wrong_is_printed_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "pinferry.demo.experiment.compare",
        lambda control, _: compare(control, replace(control, losses=[0.0] * len(control.losses))),
    )
    assert main(replace(TINY, quiet=False)) == 1
    shown = capsys.readouterr().out
    assert "failed: 8 of 8 losses differ, first that of batch 1" in shown
    assert "Equal to the bit" not in shown


def test_the_report_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(replace(TINY, quiet=False)) == 0
    shown = capsys.readouterr().out
    for part in ("optimizer.state[0].exp_avg is offloaded", "verified", "sample", "Equal to the"):
        assert part in shown


def test_quiet_shows_nothing_where_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    assert capsys.readouterr() == ("", "")


def test_json_on_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(replace(TINY, quiet=False, json="-")) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["ok"]
    assert "Equal to the bit" in streams.err


def test_the_callers_random_numbers_and_settings_stay_as_they_were() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    threads = torch.get_num_threads()
    assert main(TINY) == 0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_another_seed_gives_another_run(found: dict[str, Any], tmp_path: Path) -> None:
    code, other = run_to_json(tmp_path / "found.json", replace(TINY, seed=1))
    assert code == 0
    assert other["control"]["losses_hex"] != found["control"]["losses_hex"]


def test_an_arena_that_is_too_small_is_told_with_numbers() -> None:
    with pytest.raises(ArenaExhausted) as caught:
        main(replace(TINY, arena="64KiB"))
    requested, free = caught.value.fields["requested"], caught.value.fields["free"]
    assert isinstance(requested, int)
    assert isinstance(free, int)
    assert requested > free


def test_the_live_display_follows_the_run() -> None:
    settings = resolve(TINY)
    corpus, shape = prepare(settings)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    display = LiveDisplay(settings, shape, console)
    with display.shown():
        outcome = run_experiment(settings, corpus, shape, display)
    assert outcome.failures == ()
    assert "offloaded run" in screen.getvalue()
    assert "GB/s" in screen.getvalue()


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"params": 0}, "pass a whole number from"),
        ({"params": -5}, "params=-5"),
        ({"params": 1000}, "params=1000"),
        ({"params": 1.5}, "whole number"),
        ({"steps": 0}, "steps=0"),
        ({"cycles": 0}, "cycles=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**62}, "less than"),
        ({"json": "nowhere/at/all.json"}, "no directory"),
        ({"json": "."}, "is a directory"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_with_advice(
    asked: dict[str, Any], hint: str
) -> None:
    with pytest.raises(InvalidArgument, match=hint):
        main(replace(TINY, **asked))


def test_an_unknown_device_or_size_is_refused() -> None:
    with pytest.raises(UnknownDevice):
        main(replace(TINY, device="tpu"))
    with pytest.raises(InvalidSize):
        main(replace(TINY, arena="much"))


def test_auto_takes_the_default_device_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "default_device", lambda: "cpu")
    settings = resolve(replace(TINY, device="auto"))
    assert settings.device == "cpu"
    assert settings.device_was_chosen


def test_a_model_that_does_not_fit_is_refused_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scarce = HostHeadroom(available_bytes=100_000, total_bytes=200_000, limited_by="a test")
    monkeypatch.setattr("pinferry.demo.memory_check.available_host_bytes", lambda: scarce)
    with pytest.raises(InvalidArgument, match="params=2812 or fewer"):
        main(TINY)


@pytest.mark.parametrize("params", [20_000, 10**6, 124 * 10**6, 10**9, 7 * 10**9, 70 * 10**9])
def test_a_shape_comes_within_10_percent_of_the_size_asked_for(params: int) -> None:
    shape = choose_shape(params, vocabulary=96, context=64, positions=64)
    assert shape.parameters == pytest.approx(params, rel=0.1)
    assert shape.width % (2 * shape.heads) == 0


def test_a_size_that_no_shape_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="params=7760"):
        choose_shape(7000, vocabulary=96, context=64, positions=64)
    assert choose_shape(7760, vocabulary=96, context=64, positions=64).parameters == 7760


def test_the_shapes_size_is_the_models(trainee: Trainee) -> None:
    counted = sum(parameter.numel() for parameter in trainee.model.parameters())
    assert counted == trainee.model.shape.parameters


def test_the_text_is_the_same_every_time_and_has_no_docstrings(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text('"""Doc."""\ndef f():\n    """Doc."""\n')
    (tmp_path / "a.py").write_text("x = 1  # why\n" * 2000)
    (tmp_path / "_table.py").write_text("y = 2\n" * 2000)
    (tmp_path / "c.py").write_text("x ==\n")
    (tmp_path / "d.py").write_text("z = 'ä'\n")
    (tmp_path / "e.py").write_text(r"z = '\u00e4'")
    corpus = load_corpus(50_000, directory=tmp_path)
    text = corpus.decode(corpus.tokens.tolist())
    assert text == "x = 1\n" * 1999 + "x = 1" + "\n\ndef f():\n\tpass"
    assert corpus.files == 2
    assert corpus.encode(text) == corpus.tokens.tolist()


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="install Python with its sources"):
        load_corpus(50_000, directory=tmp_path)


@pytest.fixture
def trainee() -> Trainee:
    settings = resolve(TINY)
    corpus, shape = prepare(settings)
    return Trainee(settings, shape, corpus)


def test_training_lowers_the_loss() -> None:
    settings = resolve(replace(TINY, cycles=1, steps=60))
    corpus, shape = prepare(settings)
    with threads_for(shape.parameters):
        losses = Trainee(settings, shape, corpus).train(60, lambda _: None)
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


def test_generating_with_kept_keys_equals_generating_anew(trainee: Trainee) -> None:
    model = trainee.model
    tokens = torch.arange(12).reshape(1, 12) % model.shape.vocabulary
    whole, _ = model(tokens)
    _, past = model(tokens[:, :8])
    for position in range(8, 12):
        step, past = model(tokens[:, position : position + 1], past, position)
        torch.testing.assert_close(step[:, 0], whole[:, position], rtol=1e-4, atol=1e-4)


def test_the_digest_names_every_tensor_and_sees_one_bit(trainee: Trainee) -> None:
    trainee.train(1, lambda _: None)
    model, optimizer = trainee.model, trainee.optimizer
    before = state_digest(model, optimizer)
    assert "buffer rotary_sines" in before
    assert "exp_avg of embedding.weight" in before
    assert "gradient of norm.weight" in before
    model.get_buffer("rotary_sines").untyped_storage()[3] ^= 1
    after = state_digest(model, optimizer)
    assert [name for name in before if before[name] != after[name]] == ["buffer rotary_sines"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_a_checksum_depends_on_the_order(dtype: torch.dtype) -> None:
    forwards = torch.arange(100).to(dtype)
    assert checksum(forwards) != checksum(forwards.flip(0))
    assert checksum(forwards) == checksum(forwards.clone().reshape(10, 10))


def result(
    losses: Sequence[float] = (1.0, 2.0),
    texts: Sequence[list[str]] = (["a"], ["b"]),
    digests: Sequence[dict[str, str]] = ({"x": "1"}, {"x": "1", "y": "2"}),
) -> RunResult:
    return RunResult(list(losses), list(texts), list(digests))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (result(losses=[1.0, 2.0000000000000004]), "1 of 2 losses differ, first that of batch 2"),
        (result(losses=[1.0]), "has 2 losses, the other 1"),
        (result(texts=[["a"], ["c"]]), "texts generated in cycle 2 differ"),
        (result(texts=[["a"]]), "texts of 2 cycles, the other 1"),
        (
            result(digests=[{"x": "1"}, {"x": "1", "y": "3"}]),
            "1 of 2 tensors differ at the end, first: y",
        ),
        (result(digests=[{"x": "0"}, {}]), "differ after the reload of cycle 1, first: x"),
        (result(digests=[{"x": "1"}, {"x": "1"}]), "first: y"),
        (result(digests=[]), "has 2 digests, the other 0"),
    ],
)
def test_a_comparison_tells_what_differs(other: RunResult, told: str) -> None:
    comparison = compare(result(), other)
    assert not comparison.equal
    assert told in comparison.failures[0]


def test_a_comparison_is_of_bits() -> None:
    assert compare(result(losses=[math.nan]), result(losses=[math.nan])).equal
    assert not compare(result(losses=[0.0]), result(losses=[-0.0])).equal


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([3.0], "▁"), ([4.0, 3.0, 2.0], "█▅▁"), ([math.nan, 1.0], "▁▁")]
)
def test_a_sparkline_draws_any_curve(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_run_on_a_gpu_equals_its_control_run_and_its_memory_comes_back(tmp_path: Path) -> None:
    asked = replace(TINY, device="cuda:0", params=50_000_000, steps=4)
    code, found = run_to_json(tmp_path / "found.json", asked)
    assert found["failures"] == []
    assert code == 0
    for reclaim in found["reclaims"]:
        report = reclaim["report"]
        # PyTorch does not split off what would be left of a block below 1 MiB.
        assert report["allocator_bytes"] >= report["expected_bytes"]
