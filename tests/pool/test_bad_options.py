"""What is no option is one clear error, and nothing is made or lost."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from pinferry import PinnedArena
from pinferry.errors import InvalidArgument, NotCopyable, UnknownDevice

MIB = 2**20
NAN = float("nan")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threads", 2**32),
        ("threads", 1.5),
        ("threads", "x"),
        ("threads", True),
        ("threads", []),
        ("threads", torch.tensor([1, 2])),
        ("numa_node", -1),
        ("numa_node", 1024),
        ("numa_node", "x"),
        ("numa_node", NAN),
        ("numa_node", True),
        ("eager", "x"),
        ("eager", 1),
        ("eager", None),
        ("huge_pages", "x"),
        ("huge_pages", torch.tensor(1)),
        ("backend", 3),
        ("backend", []),
        ("backend", None),
        ("backend", "pinned"),
    ],
)
def test_an_option_of_another_kind_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=option if option != "backend" else "no backend"):
        PinnedArena("1MiB", device="cpu", **{option: value})  # type: ignore[arg-type]


def test_a_device_number_that_no_machine_has_is_refused() -> None:
    with pytest.raises(UnknownDevice):
        PinnedArena("1MiB", device="cuda:99999999999999999999")


@pytest.mark.parametrize("timeout", [NAN, -1, -0.5, "x", [], 10**400, True, b"1"])
@pytest.mark.parametrize("call", ["alloc", "alloc_extents", "wait_ready"])
def test_a_timeout_that_is_none_is_refused(call: str, timeout: object) -> None:
    with PinnedArena("1MiB", device="cpu") as arena:
        size = () if call == "wait_ready" else (512,)
        with pytest.raises(InvalidArgument, match="timeout="):
            getattr(arena, call)(*size, timeout=timeout)
        assert arena.stats().blocks == 0


@pytest.mark.parametrize("timeout", [None, 0, 0.0, 1, 1e300, np.float32(0.5), np.int64(1)])
def test_any_number_of_seconds_will_do(timeout: float | None) -> None:
    with PinnedArena("1MiB", device="cpu") as arena:
        arena.alloc(512, timeout=timeout).free()
        assert arena.wait_ready(timeout)


@pytest.mark.parametrize(
    "shape", ["x", 1.5, ("a",), (1.5,), (None,), [2, [3]], b"12", (0, 2**70), (2**70,), (-1,)]
)
@pytest.mark.parametrize("view", ["numpy", "tensor"])
def test_a_shape_that_is_none_is_refused(view: str, shape: object) -> None:
    with (
        PinnedArena("1MiB", device="cpu") as arena,
        arena.alloc(4096) as block,
        pytest.raises(InvalidArgument, match="shape"),
    ):
        getattr(block, view)(shape=shape)


@pytest.mark.parametrize("shape", [np.array([2, 3]), range(1, 4), [np.int64(6)], torch.Size([6])])
def test_whatever_holds_integers_is_a_shape(shape: object) -> None:
    wanted = tuple(int(each) for each in shape)  # type: ignore[attr-defined]
    with PinnedArena("1MiB", device="cpu") as arena, arena.alloc(4096) as block:
        assert block.numpy(shape=shape).shape == wanted  # type: ignore[arg-type]
        assert tuple(block.tensor(shape=shape).shape) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bad", 3, object(), np.float32])
def test_a_dtype_that_is_none_is_refused(dtype: object) -> None:
    with PinnedArena("1MiB", device="cpu") as arena, arena.alloc(4096) as block:
        with pytest.raises(InvalidArgument, match="dtype"):
            block.tensor(dtype)  # type: ignore[arg-type]
        if dtype is not np.float32:
            with pytest.raises(InvalidArgument, match="dtype"):
                block.numpy(dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("console", ["x", 0, print])
def test_a_map_is_printed_on_a_console(console: object) -> None:
    with (
        PinnedArena("1MiB", device="cpu") as arena,
        pytest.raises(InvalidArgument, match="console="),
    ):
        arena.describe(console)  # type: ignore[arg-type]


def test_an_arena_is_neither_copied_nor_pickled() -> None:
    with PinnedArena("1MiB", device="cpu") as arena:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(NotCopyable):
                attempt(arena)


def test_an_odd_capacity_does_not_make_an_arena_grow_by_itself() -> None:
    with PinnedArena(2 * MIB + 100, device="cpu", max_capacity="64MiB", chunk="2MiB") as arena:
        assert arena.wait_ready(30.0)
        assert arena.capacity_bytes == 2 * MIB
