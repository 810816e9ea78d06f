"""What surrounds an optimizer in a loop: schedulers, scalers, clipping, closures, checkpoints."""

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn, optim

from pinferry import StreamingOptimizer
from pinferry.errors import EngineClosed, InvalidArgument
from tests.loop.runs import SIDE, WINDOW, Run, same

if TYPE_CHECKING:
    from pinferry import PinnedArena


def adam(run: Run) -> optim.Optimizer:
    return optim.AdamW(run.groups(), lr=1e-2)


@pytest.fixture
def pair(device: str) -> tuple[Run, Run]:
    return Run(device), Run(device)


@pytest.fixture
def both(pair: tuple[Run, Run], arena: PinnedArena) -> tuple[optim.Optimizer, StreamingOptimizer]:
    return adam(pair[0]), StreamingOptimizer(adam(pair[1]), arena, window=WINDOW)


def test_a_scheduler_sets_the_rates_of_the_streamed_one(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    schedulers = [
        optim.lr_scheduler.SequentialLR(
            each,
            [
                optim.lr_scheduler.LinearLR(each, 0.1, total_iters=2),
                optim.lr_scheduler.CosineAnnealingLR(each, 4),
            ],
            [2],
        )
        for each in both
    ]
    for _ in range(5):
        losses = [run.train(each, 1) for run, each in zip(pair, both, strict=True)]
        assert losses[0] == losses[1]
        for scheduler in schedulers:
            scheduler.step()
    assert both[0].param_groups[0]["lr"] == both[1].param_groups[0]["lr"] != 3e-2


def test_a_scaler_skips_steps_that_overflow(
    pair: tuple[Run, Run],
    both: tuple[optim.Optimizer, StreamingOptimizer],
    device: str,
) -> None:
    scalers = [torch.amp.GradScaler(device.partition(":")[0], init_scale=4.0) for _ in both]
    for number in range(4):
        for run, each, scaler in zip(pair, both, scalers, strict=True):
            torch.autograd.backward(scaler.scale(run.loss()))
            if number == 2:
                next(run.model.parameters()).grad.fill_(torch.inf)  # type: ignore[union-attr]
            scaler.unscale_(each)
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
            scaler.step(each)
            scaler.update()
            each.zero_grad()
            run.steps += 1
        assert same(*(run.weights() for run in pair))
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0


def test_a_closure_is_called_once_before_anything(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    calls = 0

    def closure_of(run: Run, optimizer: optim.Optimizer) -> Any:
        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = run.loss()
            torch.autograd.backward(loss)
            return loss

        return closure

    for _ in range(3):
        losses = [each.step(closure_of(run, each)) for run, each in zip(pair, both, strict=True)]
        assert torch.equal(*losses)
    assert calls == 6
    assert same(*(run.weights() for run in pair))


def test_a_closure_that_raises_leaves_everything_as_it_was(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    run, optimizer = pair[1], both[1]
    run.train(optimizer, 1)
    weights, state = run.weights(), optimizer.state_dict()

    def closure() -> torch.Tensor:
        run.backward()
        raise ArithmeticError("no loss")

    with pytest.raises(ArithmeticError):
        optimizer.step(closure)
    assert same(run.weights(), weights)
    assert same(optimizer.state_dict(), state)


def test_gradients_accumulate_over_several_backwards(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    for run, each in zip(pair, both, strict=True):
        for _ in range(2):
            run.backward()
            run.steps += 1
        each.step()
        each.zero_grad(set_to_none=False)
    assert same(*(run.weights() for run in pair))
    assert pair[0].train(both[0]) == pair[1].train(both[1])


def test_a_group_that_is_added_streams_too(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    for run, each in zip(pair, both, strict=True):
        run.train(each, 1)
        added = nn.Linear(SIDE, SIDE).to(run.device)
        for parameter in added.parameters():
            nn.init.constant_(parameter, 0.01)
        run.model.append(added)
        each.add_param_group({"params": list(added.parameters()), "lr": 0.5})
    assert pair[0].train(both[0]) == pair[1].train(both[1])
    assert both[1].resident_bytes == 0
    assert same(both[0].state_dict(), both[1].state_dict())


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, map_location="cpu")
    return loaded


@pytest.mark.parametrize("saver", [0, 1], ids=["plain saves", "streamed saves"])
@pytest.mark.parametrize("loader", [0, 1], ids=["plain loads", "streamed loads"])
def test_either_loads_what_either_saved(
    saver: int,
    loader: int,
    pair: tuple[Run, Run],
    both: tuple[optim.Optimizer, StreamingOptimizer],
    device: str,
    arena: PinnedArena,
) -> None:
    pair[saver].train(both[saver], 3)
    saved = through_a_file(both[saver].state_dict())
    weights = copy.deepcopy(pair[saver].model.state_dict())
    expected = pair[saver].train(both[saver], 3)
    run = Run(device)
    run.model.load_state_dict(weights)
    run.steps = 3
    made: optim.Optimizer = adam(run)
    if loader:
        made = StreamingOptimizer(made, arena, window=WINDOW)
    made.load_state_dict(saved)
    assert run.train(made, 3) == expected
    if isinstance(made, StreamingOptimizer):
        assert made.resident_bytes == 0


def test_loading_replaces_state_and_options_and_keeps_what_was_given(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    run, optimizer = pair[1], both[1]
    run.train(optimizer, 1)
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved)
    run.train(optimizer, 2)
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 3e-2
    run.train(optimizer, 1)
    assert same(saved, kept)


def test_master_weights_are_saved_and_loaded(device: str, arena: PinnedArena) -> None:
    def make(run: Run) -> StreamingOptimizer:
        return StreamingOptimizer(
            optim.SGD(run.groups(), lr=1e-3, momentum=0.9),
            arena,
            window=2 * WINDOW,
            master_weights=True,
        )

    first = Run(device, torch.bfloat16)
    optimizer = make(first)
    first.train(optimizer, 3)
    saved, weights = through_a_file(optimizer.state_dict()), first.weights()
    expected = first.train(optimizer, 5)
    second = Run(device, torch.bfloat16)
    with torch.no_grad():
        for parameter, weight in zip(second.model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    second.steps = 3
    other = make(second)
    other.load_state_dict(saved)
    assert second.train(other, 5) == expected
    bad = copy.deepcopy(saved)
    bad["master_weights"][0] = torch.ones(3)
    with pytest.raises(InvalidArgument, match="master weight of param_groups"):
        other.load_state_dict(bad)


def test_what_does_not_fit_is_not_loaded(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    run, optimizer = pair[1], both[1]
    run.train(optimizer, 1)
    before = optimizer.state_dict()
    other = optim.AdamW(run.model.parameters()).state_dict()
    with pytest.raises(InvalidArgument, match="the groups of this optimizer have"):
        optimizer.load_state_dict(other)
    with pytest.raises(InvalidArgument, match="no state_dict of an optimizer"):
        optimizer.load_state_dict({"weights": 1})
    assert same(optimizer.state_dict(), before)


def test_state_that_is_away_is_guarded_by_name(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    run, optimizer = pair[1], both[1]
    run.train(optimizer, 1)
    moments = optimizer.state[optimizer.param_groups[1]["params"][0]]
    with pytest.raises(RuntimeError, match=r"param_groups\[1\]\.params\[0\].*exp_avg"):
        moments["exp_avg"].sum()


def test_after_the_end_only_the_optimizer_itself_steps(
    pair: tuple[Run, Run], both: tuple[optim.Optimizer, StreamingOptimizer]
) -> None:
    optimizer = both[1]
    optimizer.close()
    for call in (optimizer.step, optimizer.state_dict):
        with pytest.raises(EngineClosed, match="the one that it was made of"):
            call()


@pytest.mark.gpu
def test_the_device_never_holds_more_than_the_window(arena: PinnedArena) -> None:
    run = Run("cuda:0", layers=40)
    optimizer = StreamingOptimizer(optim.AdamW(run.groups(), lr=1e-2), arena, window=WINDOW)
    run.train(optimizer, 1)
    torch.cuda.synchronize()
    run.backward()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    torch.cuda.synchronize()
    # The update itself makes tensors as large as a piece.
    assert torch.cuda.max_memory_allocated() - before < 2.5 * WINDOW
