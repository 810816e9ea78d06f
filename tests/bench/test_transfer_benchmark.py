"""The benchmark of transfers, at a size that says nothing about speed."""

from __future__ import annotations

import pytest
import torch

from pinferry.bench.cold import measure_cold
from pinferry.bench.many_copies import measure_many_copies
from pinferry.bench.options import measure_options
from pinferry.bench.planned import measure_planned
from pinferry.bench.state_shapes import MIXED, SMALL

CPU = torch.device("cpu")


def test_the_states_are_as_large_as_their_description_says() -> None:
    assert (len(SMALL), round(sum(SMALL) / 1e6)) == (2672, 104)
    assert (len(MIXED), round(sum(MIXED) / 1e9, 2)) == (2816, 2.05)


def test_plans_are_measured_beside_a_raw_copy_and_a_loop() -> None:
    cases = dict(measure_planned(CPU, 2, layers=0.003))
    for kind in ("small", "mixed"):
        for key in ("offload_{}_first", "offload_{}_first_recorded", "offload_{}", "reload_{}"):
            case = cases[key.format(kind)]
            assert case.unit == "GB/s"
            assert case.ours > 0
            assert case.reference > 0
        assert cases[f"offload_{kind}_vs_loop"].ratio > 0
    submits = [case for key, case in cases.items() if key.startswith("submit_planned_")]
    assert submits
    assert all(case.reference == 4000.0 for case in submits)


def test_tiny_copies_are_measured_each_way() -> None:
    cases = dict(measure_many_copies(CPU, 2, copies=16))
    assert list(cases) == ["copies_512b_out", "copies_512b_in", "copies_4k_out", "copies_4k_in"]
    assert all(case.ours > 0 for case in cases.values())


def test_a_cold_reload_is_measured_with_the_host_s_part_of_the_offload() -> None:
    cases = dict(measure_cold(CPU, 2**22 + 3, 2))  # no whole number of words each
    assert cases["cold_reload"].ours > 0
    assert cases["submit_planned_5_us"].reference == 60.0
    assert cases["submit_raw_5_us"].reference == cases["submit_planned_5_us"].ours


def test_verified_moves_and_immutable_state_are_measured_beside_plain_ones() -> None:
    cases = dict(measure_options(CPU, 5 * 2**20, 2))
    assert list(cases) == ["verified_offload", "verified_reload", "immutable_offload_ms"]
    assert all(case.ours > 0 and case.reference > 0 for case in cases.values())


@pytest.mark.gpu
def test_work_beside_a_bulk_offload_is_measured() -> None:
    from pinferry.bench.alongside import measure_alongside

    cases = dict(measure_alongside(torch.device("cuda:0"), 2**31, 1))
    assert cases["interference"].ratio > 0


@pytest.mark.gpu
def test_a_small_reload_beside_bulk_is_measured() -> None:
    from pinferry.bench.urgent import measure_urgent

    cases = dict(measure_urgent(torch.device("cuda:0"), 2**31, 1))
    assert cases["urgent_ms"].ours > 0
    assert cases["urgent_same_way_ms"].ratio < 1


@pytest.mark.gpu
def test_a_swap_is_measured_with_what_it_took() -> None:
    from pinferry.bench.swapping import measure_swap

    cases = dict(measure_swap(torch.device("cuda:0"), 2**30, 2))
    assert cases["swap"].ours > 0
    assert cases["swap_extra_bytes"].ratio <= 1
