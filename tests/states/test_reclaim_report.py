"""What a reclaim report says of made-up counts."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pinferry import ReclaimReport
from pinferry.errors import InvalidSize, ReclaimShortfall
from pinferry.states.memory import MemoryReading

GB = 10**9
CUDA_BEFORE = MemoryReading(30 * GB, 32 * GB, 40 * GB, 5 * GB)
STAYS = {f"buffer.{index}": (9 - index) * 2**20 for index in range(7)}
CPU_BEFORE = MemoryReading(None, None, None, 30 * GB)


def cuda_report(
    allocator: int = 12 * GB, nvml: int | None = 12 * GB, expected: int = 12 * GB
) -> ReclaimReport:
    """Build a report in which the counts fell by so much."""
    before = CUDA_BEFORE if nvml is not None else MemoryReading(30 * GB, 32 * GB, None, 5 * GB)
    after = MemoryReading(
        30 * GB - allocator, 20 * GB, None if nvml is None else 40 * GB - nvml, 5 * GB
    )
    return ReclaimReport(
        "cuda:0", expected, {"optim_states": expected}, before, after, STAYS, ("why",)
    )


def cpu_report(rss: int, expected: int = GB) -> ReclaimReport:
    after = MemoryReading(None, None, None, 30 * GB - rss)
    return ReclaimReport("cpu", expected, {"lp_params": expected}, CPU_BEFORE, after, {}, ())


def test_each_count_says_by_how_much_it_fell() -> None:
    report = cuda_report(allocator=11, nvml=-3)
    assert (report.allocator_bytes, report.nvml_bytes, report.rss_bytes) == (11, -3, None)
    assert (cpu_report(7).allocator_bytes, cpu_report(7).nvml_bytes) == (None, None)
    assert cpu_report(7).rss_bytes == 7


def test_a_report_passes_when_every_count_fell_by_all_of_it() -> None:
    cuda_report().verify()
    cpu_report(GB).verify()


def test_pytorchs_allocator_may_miss_nothing() -> None:
    with pytest.raises(ReclaimShortfall, match="PyTorch's allocator") as caught:
        cuda_report(allocator=12 * GB - 1).verify()
    assert caught.value.expected == 12 * GB
    assert caught.value.allocator == 12 * GB - 1
    assert (caught.value.nvml, caught.value.rss) == (12 * GB, None)


def test_nvml_may_miss_two_percent_and_no_more() -> None:
    missing = 12 * GB // 50
    cuda_report(nvml=12 * GB - missing).verify()
    with pytest.raises(ReclaimShortfall, match="NVML fell by only"):
        cuda_report(nvml=12 * GB - missing - 1).verify()


def test_for_little_state_nvml_may_miss_what_a_segment_holds() -> None:
    small = 2**20
    cuda_report(allocator=small, nvml=small - 64 * 2**20, expected=small).verify()
    with pytest.raises(ReclaimShortfall, match="NVML"):
        cuda_report(allocator=small, nvml=small - 64 * 2**20 - 1, expected=small).verify()


def test_resident_memory_may_miss_two_percent_or_four_mebibytes() -> None:
    cpu_report(GB - GB // 50).verify()
    with pytest.raises(ReclaimShortfall, match="resident memory") as caught:
        cpu_report(GB - GB // 50 - 1).verify()
    assert caught.value.rss == GB - GB // 50 - 1
    cpu_report(0, expected=4 * 2**20).verify()
    with pytest.raises(ReclaimShortfall):
        cpu_report(0, expected=4 * 2**20 + 1).verify()


def test_a_tolerance_of_the_callers_own_counts_in_place_of_the_usual() -> None:
    with pytest.raises(ReclaimShortfall):
        cpu_report(GB - 1).verify(tolerance_bytes=0)
    cpu_report(0).verify(tolerance_bytes=GB)
    with pytest.raises(ReclaimShortfall, match="allocator"):
        cuda_report(allocator=0).verify(tolerance_bytes=100 * GB)
    cpu_report(0).verify(tolerance_bytes="1GB")
    for nonsense in ("much", -1, True, 0.5):
        with pytest.raises(InvalidSize):
            cpu_report(GB).verify(tolerance_bytes=nonsense)  # type: ignore[arg-type]


def test_a_shortfall_says_what_was_expected_what_came_and_why() -> None:
    with pytest.raises(ReclaimShortfall) as caught:
        cuda_report(allocator=0).verify()
    message = str(caught.value)
    assert "cuda:0" in message
    assert "why" in message
    assert "11.18 GiB" in message


def test_a_count_that_is_missing_fails_nothing() -> None:
    report = cuda_report(nvml=None)
    report.verify()
    assert report.nvml_bytes is None
    assert "NVML" not in str(report).replace("why", "")


def test_a_report_is_plain_data_for_json() -> None:
    for report in (cuda_report(), cuda_report(nvml=None), cpu_report(GB)):
        data = json.loads(json.dumps(report.to_dict()))
        assert data["expected_bytes"] == report.expected_bytes
        assert data["by_category"] == report.by_category
        assert data["allocator_bytes"] == report.allocator_bytes
        assert data["nvml_bytes"] == report.nvml_bytes
        assert data["rss_bytes"] == report.rss_bytes
        assert data["before"]["rss_bytes"] == report.before.rss_bytes
        assert data["notes"] == list(report.notes)
        assert data["stays"] == report.stays


def test_as_text_it_names_categories_counts_and_notes() -> None:
    lines = str(cuda_report()).splitlines()
    assert "cuda:0" in lines[0]
    assert any("optim_states" in line for line in lines)
    assert any("PyTorch's allocator" in line for line in lines)
    assert any("NVML" in line for line in lines)
    assert not any("resident" in line for line in lines)
    assert lines[-1] == "why"


def test_as_text_it_names_the_largest_of_what_stays_and_counts_the_rest() -> None:
    stays = [line for line in str(cuda_report()).splitlines() if line.startswith("stays: ")]
    assert stays[0] == "stays: buffer.0, 9.00 MiB"
    assert len(stays) == 6
    assert stays[-1] == "stays: 2 others, 7.00 MiB"
    assert "stays" not in str(cpu_report(GB))


def test_a_report_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        cuda_report().expected_bytes = 0  # type: ignore[misc]
