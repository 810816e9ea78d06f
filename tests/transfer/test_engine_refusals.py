"""What cannot be moved is refused by name, and the whole batch stays where it is."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import (
    AlreadyOffloaded,
    ArenaExhausted,
    ArenaInUse,
    NotOffloaded,
    TransferError,
    UnsupportedStorage,
    WrongDevice,
)
from tests.transfer.storage_bits import random_bits, storage_bits

Make = Callable[[Path], torch.Tensor]


def loaded_by_mmap(folder: Path) -> torch.Tensor:
    torch.save(torch.ones(4096), folder / "saved.pt")
    loaded = torch.load(folder / "saved.pt", mmap=True)
    assert isinstance(loaded, torch.Tensor)
    return loaded


def from_file(folder: Path) -> torch.Tensor:
    return torch.from_file(str(folder / "raw"), shared=True, size=4096)


def mapped(_: Path) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(-1, 4096), dtype=torch.float32)


def shared(_: Path) -> torch.Tensor:
    made = torch.ones(8)
    made.share_memory_()  # type: ignore[no-untyped-call]
    return made


FOREIGN: dict[str, Make] = {
    "numpy": lambda _: torch.from_numpy(np.ones(8)),
    "dlpack": lambda _: torch.utils.dlpack.from_dlpack(np.ones(8)),
    "buffer": lambda _: torch.frombuffer(bytearray(64), dtype=torch.float32),
    "anonymous map": mapped,
    "torch.load(mmap=True)": loaded_by_mmap,
    "from_file": from_file,
    "shared memory": shared,
    "copy-on-write": lambda _: torch._lazy_clone(torch.ones(8)),
    "arena block": lambda _: PinnedArena(2**20, device="cpu").alloc(64).tensor(),
    "sparse coo": lambda _: torch.eye(3).to_sparse(),
    "uninitialized": lambda _: torch.nn.LazyLinear(3).weight,
    "sparse csc": lambda _: torch.eye(3).to_sparse_csc(),
}


def assert_untouched(engine: TransferEngine, states: dict[str, torch.Tensor]) -> None:
    """Check that nothing of the batch went away and that the arena holds nothing."""
    assert engine.offloaded_names() == ()
    assert engine.arena.stats().used_bytes == 0
    for state in states.values():
        assert torch.equal(state, torch.ones_like(state))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("call", ["offload", "plan"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_memory_that_cannot_be_made_again_is_refused_by_name(
    kind: str, call: str, tmp_path: Path
) -> None:
    foreign = FOREIGN[kind](tmp_path)
    with PinnedArena("4MiB", device="cpu") as arena, TransferEngine(arena) as engine:
        good = {"first": torch.ones(8), "last": torch.ones(8)}
        with pytest.raises(UnsupportedStorage, match=r"\Adecoder\.weight "):
            getattr(engine, call)({"first": good["first"], "decoder.weight": foreign, **good})
        assert_untouched(engine, good)


@pytest.mark.gpu
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_foreign_gpu_memory_is_refused_by_name(engine: TransferEngine, torch_device: str) -> None:
    source = torch.ones(8, device=torch_device)
    foreign = torch.utils.dlpack.from_dlpack(source)
    good = torch.ones(8, device=torch_device)
    with pytest.raises(UnsupportedStorage, match=r"\Aforeign "):
        engine.offload({"good": good, "foreign": foreign})
    assert_untouched(engine, {"good": good})


def test_an_error_sends_nobody_back_to_the_engine_that_he_comes_from(
    engine: TransferEngine, torch_device: str
) -> None:
    x, y = (torch.ones(8, device=torch_device) for _ in range(2))
    engine.offload({"x": x})
    with pytest.raises(AlreadyOffloaded, match="only the engine or plan that did it"):
        engine.plan({"x": x})
    plan = engine.plan({"y": y})
    plan.offload()
    with pytest.raises(NotOffloaded, match="only that one reloads"):
        engine.reload({"y": y})
    plan.reload()
    plan.close()
    engine.reload()
    assert (x + y).sum() == 16


def test_a_tensor_of_another_device_is_refused_by_name(
    engine: TransferEngine, torch_device: str
) -> None:
    good = {"good": torch.ones(8, device=torch_device)}
    others = {"meta": torch.ones(8, device="meta")}
    if torch_device != "cpu":
        others["cpu"] = torch.ones(8)
    for device, other in others.items():
        with pytest.raises(WrongDevice, match=rf"\Aother lives on {device}, and this arena serves"):
            engine.offload({**good, "other": other})
        with pytest.raises(WrongDevice) as caught:
            engine.plan({**good, "other": other})
        assert ("make an arena" in str(caught.value)) == (device != "meta")  # there is none
        assert_untouched(engine, good)


def test_a_full_arena_is_refused_with_the_numbers_and_moves_nothing(
    engine: TransferEngine, torch_device: str
) -> None:
    states = {f"s{index}": torch.ones(2**18, device=torch_device) for index in range(5)}
    addresses = [each.data_ptr() for each in states.values()]
    with pytest.raises(ArenaExhausted, match=r"5 storages.*5\.00 MiB.*nothing was moved") as caught:
        engine.offload(states)
    assert caught.value.requested == 5 * 2**20
    assert caught.value.free == 4 * 2**20
    assert int(caught.value.largest_free or 0) <= int(caught.value.free)
    assert caught.value.in_flight == 0
    assert [each.data_ptr() for each in states.values()] == addresses
    assert_untouched(engine, states)
    with pytest.raises(ArenaExhausted):
        engine.plan(states)
    assert_untouched(engine, states)
    assert engine.offload(dict(list(states.items())[:4])).nbytes == 4 * 2**20


def test_an_arena_that_is_full_but_for_crumbs_takes_a_storage_in_pieces(
    engine: TransferEngine, torch_device: str
) -> None:
    crumbs = [engine.arena.alloc("128KiB") for _ in range(32)]
    del crumbs[::2]
    x = random_bits(torch.uint8, 1_500_000, torch_device)
    before = storage_bits(x)
    engine.offload(x)
    assert engine.arena.stats().blocks == 16 + 12
    engine.reload()
    assert storage_bits(x) == before


def test_what_another_engine_or_plan_holds_is_refused(
    arena: PinnedArena, engine: TransferEngine, torch_device: str
) -> None:
    x, good = torch.ones(8, device=torch_device), torch.ones(8, device=torch_device)
    other = TransferEngine(arena)
    other.offload({"x": x})
    for call in (engine.offload, engine.plan):
        with pytest.raises(AlreadyOffloaded, match=r"\Amine is offloaded already"):
            call({"good": good, "mine": x})
    with pytest.raises(TransferError):
        engine.reload({"mine": x})
    assert engine.offloaded_names() == ()
    assert good.sum() == 8
    with pytest.raises(RuntimeError, match=r"\Ax is offloaded"):
        x.sum()
    other.reload()
    assert engine.offload({"mine": x}).nbytes == 32


def test_an_engine_that_holds_states_does_not_close(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.ones(256, device=torch_device)
    engine.offload({"the first": x})
    with pytest.raises(ArenaInUse, match=r"1\.00 KiB.*the first") as caught:
        engine.close()
    assert caught.value.used == 1024
    with pytest.raises(ArenaInUse):
        engine.arena.close()
    engine.reload()
    engine.close()
    assert x.sum() == 256


def test_an_engine_does_not_close_while_a_plan_of_it_is_away(
    arena: PinnedArena, engine: TransferEngine, torch_device: str
) -> None:
    x, y, z = (torch.ones(256, device=torch_device) for _ in range(3))
    plan, other = engine.plan({"x": x, "y": y}), TransferEngine(arena).plan({"z": z})
    plan.offload()
    other.offload()
    with pytest.raises(ArenaInUse, match=r"2 storages with 2\.00 KiB.*x; .*2 .*plan") as caught:
        engine.close()
    assert (caught.value.blocks, caught.value.used) == (2, 2048)
    engine.require_open()
    del x
    plan.reload(defer=True)
    engine.close()
    assert y.sum() == 256
    other.reload()


def test_states_come_back_from_an_arena_closed_by_force(torch_device: str) -> None:
    arena = PinnedArena("1MiB", device=torch_device)
    engine = TransferEngine(arena)
    x = random_bits(torch.float32, 1000, torch_device)
    before = storage_bits(x)
    engine.offload(x)
    arena.close(force=True)
    del arena
    engine.reload()
    assert storage_bits(x) == before


def test_an_error_that_passes_through_an_engine_is_not_hidden(
    arena: PinnedArena, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    engine = TransferEngine(arena)
    engine.offload(x)
    with pytest.raises(KeyError, match="body"), engine:
        raise KeyError("body")
    engine.reload()
    assert x.sum() == 8
