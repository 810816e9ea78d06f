"""Fails the n-th call of the driver, for every n."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from pinferry.errors import PinferryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fake_driver import FakeDriver

OUT_OF_MEMORY = 2
UNKNOWN = 999
codes = pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])


def fail_every_call(
    fake: FakeDriver, code: int, action: Callable[[], object], *, polls: bool = False
) -> list[str]:
    """Fail each call that `action` makes, one a time; return the names of the errors.

    An action that `polls` asks the driver about earlier copies too, and takes a failure there for
    "not complete yet".
    """
    raised: list[str] = []
    action()  # what is pooled and kept for the next time, is made by now
    gc.collect()
    before = fake.live()
    for n in range(1, 200):
        fake.reset()
        fake.fail_nth(n, code)
        try:
            result = action()
        except PinferryError as error:
            assert fake.calls() >= n
            raised.append(type(error).__name__)
        else:
            reached = fake.calls() >= n
            fake.reset()
            del result
            assert polls or not reached, f"the failure of call {n} went unnoticed"
            if not reached:
                break
        fake.reset()
        gc.collect()
        assert fake.live() == before, f"something is left after call {n} failed: {raised[-1:]}"
    else:
        pytest.fail("there is no end of calls")
    gc.collect()
    assert fake.live() == before
    return raised
