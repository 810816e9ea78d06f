"""What makes no sense raises one clear error, and moves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pinferry import Category, PinnedArena
from pinferry.deepspeed import attach
from pinferry.errors import (
    ArenaClosed,
    ArenaExhausted,
    EngineClosed,
    InvalidArgument,
    InvalidSize,
    StaticOffload,
    UnknownCategory,
)
from tests.zero.engines import engine_of
from tests.zero.model import Toy, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.deepspeed import DeepSpeedOffloader

STATIC = {"offload_optimizer": {"device": "cpu"}}


@pytest.fixture
def offloader(arena: PinnedArena) -> Iterator[DeepSpeedOffloader]:
    with engine_of("zero3") as engine:
        train(engine, 1)
        with attach(engine, arena) as offloader:
            yield offloader
            assert not offloader.offloaded_states()
            train(engine, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"include": ["optim_state"]}, UnknownCategory, "optim_states, hp_params"),
        ({"include": 3}, InvalidArgument, "include=3"),
        ({"include": [None]}, UnknownCategory, "None is no category"),
        ({"device": "nvme"}, InvalidArgument, "'nvme'; the host is 'cpu'"),
        ({"device": "cuda:0"}, InvalidArgument, "'cuda:0'"),
        ({"device": None}, InvalidArgument, "'None'"),
        ({"pin_memory": 1}, InvalidArgument, "pin_memory"),
        ({"non_blocking": "yes"}, InvalidArgument, "non_blocking"),
    ],
)
def test_a_wrong_argument_of_an_offload(
    arguments: dict[str, Any],
    error: type[Exception],
    says: str,
    offloader: DeepSpeedOffloader,
) -> None:
    with pytest.raises(error, match=says):
        offloader.offload_states(**arguments)


def test_wrong_arguments_of_a_reload(offloader: DeepSpeedOffloader) -> None:
    with offloader.offloaded("optim_states"):
        with pytest.raises(UnknownCategory, match="weights"):
            offloader.reload_states(include=["weights"])
        with pytest.raises(InvalidArgument, match="non_blocking"):
            offloader.reload_states("optim_states")  # type: ignore[arg-type]
        assert offloader.offloaded_states() == {Category.OPTIM_STATES}


def test_the_enums_of_deepspeed_are_understood(offloader: DeepSpeedOffloader) -> None:
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum

    both = [OffloadStateTypeEnum.hp_params, "lp_grads"]
    offloader.offload_states(both, OffloadDeviceEnum.cpu)
    assert offloader.offloaded_states() == {Category.HP_PARAMS, Category.LP_GRADS}
    offloader.reload_states()
    offloader.offload_states(both, torch.device("cpu"))
    assert offloader.offloaded_states() == {Category.HP_PARAMS, Category.LP_GRADS}
    offloader.reload_states()
    with pytest.raises(InvalidArgument, match="nvme"):
        offloader.offload_states(both, OffloadDeviceEnum.nvme)


def test_the_device_none_moves_nothing_and_says_so(
    offloader: DeepSpeedOffloader, caplog: pytest.LogCaptureFixture
) -> None:
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum

    assert offloader.offload_states(device=OffloadDeviceEnum.none).done()
    assert "moves nothing" in caplog.text


def test_an_arena_too_small_tells_what_each_category_needs(device: str) -> None:
    with engine_of("zero2") as engine:
        train(engine, 1)
        with (
            PinnedArena("32KiB", device=device) as small,
            attach(engine, small) as offloader,
        ):
            with pytest.raises(ArenaExhausted, match=r"optim_states 26\.85 KiB") as caught:
                engine.offload_states()
            assert "lp_params 6.71 KiB" in str(caught.value)
            assert "nothing was moved" in str(caught.value)
            assert not offloader.offloaded_states()
            engine.offload_states(["lp_params"])
        train(engine, 1)


@pytest.mark.parametrize(
    ("engine", "says"),
    [(None, "NoneType"), (Toy(), "Toy is no DeepSpeedEngine"), (torch.optim.SGD, "type")],
    ids=["none", "module", "class"],
)
def test_only_an_engine_can_be_attached(engine: Any, says: str, device: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        attach(engine)


def test_an_attachment_that_fails_leaves_the_engine_alone(device: str) -> None:
    with engine_of("zero2") as engine:
        before = dict(vars(engine))
        with pytest.raises(InvalidArgument, match="on_access='wait'"):
            attach(engine, on_access="wait")
        with pytest.raises(InvalidSize):
            attach(engine, "much")
        closed = PinnedArena("1MiB", device=device)
        closed.close()
        with pytest.raises(ArenaClosed):
            attach(engine, closed)
        assert vars(engine).keys() == before.keys()
        with attach(engine):
            with pytest.raises(InvalidArgument, match="attached already"):
                attach(engine)
            engine.offload_states()
        train(engine, 1)


@pytest.mark.parametrize("kind", ["zero1", "zero2"])
def test_what_deepspeed_took_away_it_must_bring_back(
    kind: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine:
        train(engine, 1)
        engine.offload_states()
        with pytest.raises(InvalidArgument, match=r"DeepSpeed itself.*reload_states\(\) first"):
            attach(engine, arena)
        engine.reload_states()
        with attach(engine, arena):
            engine.offload_states()
        train(engine, 1)


def test_an_offloader_that_was_detached_says_so(arena: PinnedArena, device: str) -> None:
    with engine_of("zero1") as engine:
        offloader = attach(engine, arena)
        offloader.detach()
        offloader.detach()
        assert not offloader.attached
        with pytest.raises(EngineClosed, match="detached"):
            offloader.offload_states()
        with pytest.raises(EngineClosed, match="detached"):
            offloader.reload_states()
        with attach(engine, arena):
            engine.offload_states()
        train(engine, 1)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_that_lives_on_the_host_stays_there(
    stage: int, arena: PinnedArena, device: str
) -> None:
    with (
        engine_of(f"zero{stage}", zero_optimization=STATIC) as engine,
        attach(engine, arena) as offloader,
    ):
        train(engine, 1)
        for category in ("hp_params", "optim_states"):
            with pytest.raises(StaticOffload, match=f"keeps {category} on the host"):
                engine.offload_states([category, "buffers"])
        with pytest.raises(AssertionError):  # as DeepSpeed's own
            engine.offload_states(["hp_params"])
        assert not offloader.offloaded_states()
        engine.offload_states()
        moved = offloader.offloaded_states()
        assert {Category.LP_PARAMS, Category.BUFFERS, Category.FROZEN_PARAMS} <= moved
        assert not moved & {Category.HP_PARAMS, Category.OPTIM_STATES}
        engine.reload_states()
        train(engine, 1, first=1)


@pytest.mark.parametrize("stage", [1, 2])
def test_the_buffer_by_which_gradients_reach_the_host_moves(
    stage: int, arena: PinnedArena, device: str
) -> None:
    with (
        engine_of(f"zero{stage}", zero_optimization=STATIC) as engine,
        attach(engine, arena) as offloader,
    ):
        train(engine, 1)
        buffer = engine.optimizer.temp_grad_buffer_for_gpu_offload
        engine.offload_states(["contiguous_grad_buffer"])
        assert offloader.engine.is_offloaded(buffer.untyped_storage())
        engine.reload_states()
        train(engine, 1, first=1)


def test_parameters_that_live_on_the_host_are_refused(device: str) -> None:
    static = {**STATIC, "offload_param": {"device": "cpu"}}
    with engine_of("zero3", zero_optimization=static) as engine:
        with pytest.raises(StaticOffload, match="keeps its parameters on the host"):
            attach(engine)
        train(engine, 1)
