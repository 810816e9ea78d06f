"""Host memory limits, read from made-up `/proc` and `/sys/fs/cgroup` trees."""

from __future__ import annotations

import tempfile
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinferry.errors import ArenaError, HostMemoryLimit, InvalidSize
from pinferry.pool.host_memory import (
    HostHeadroom,
    available_host_bytes,
    cgroup_directories,
    require_host_bytes,
)

GIB = 2**30
UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
LEGACY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
NO_LIMIT_V1 = 9223372036854771712


@dataclass
class FakeHost:
    """A directory that looks like the root of a host."""

    root: Path
    mounts: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def memory(self, total_bytes: int, available_bytes: int) -> None:
        self.write(
            "proc/meminfo",
            f"MemTotal:       {total_bytes // 1024} kB\nMemFree:        1 kB\n"
            f"MemAvailable:   {available_bytes // 1024} kB\nHugePages_Total:       0\n",
        )

    def process_in(self, *groups: str, mounts: tuple[str, ...] = (UNIFIED,)) -> None:
        self.write("proc/self/cgroup", "".join(f"{group}\n" for group in groups))
        self.write("proc/self/mountinfo", "".join(f"{mount}\n" for mount in mounts))

    def unified(self, path: str, limit: int | str, used: int = 0, cache: int = 0) -> None:
        directory = f"sys/fs/cgroup{path.rstrip('/')}"
        self.write(f"{directory}/memory.max", f"{limit}\n")
        self.write(f"{directory}/memory.current", f"{used}\n")
        self.write(f"{directory}/memory.stat", f"anon 7\ninactive_file {cache}\nactive_file 9\n")

    def legacy(self, path: str, limit: int, used: int = 0, cache: int = 0) -> None:
        directory = f"sys/fs/cgroup/memory{path.rstrip('/')}"
        self.write(f"{directory}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{directory}/memory.usage_in_bytes", f"{used}\n")
        self.write(f"{directory}/memory.stat", f"inactive_file 1\ntotal_inactive_file {cache}\n")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    fake = FakeHost(tmp_path)
    fake.memory(64 * GIB, 40 * GIB)
    return fake


def test_without_control_groups_mem_available_is_the_limit(host: FakeHost) -> None:
    assert available_host_bytes(root=host.root) == HostHeadroom(40 * GIB, "MemAvailable", 64 * GIB)


def test_a_headroom_cannot_be_changed() -> None:
    headroom = HostHeadroom(1, "MemAvailable", 2)
    with pytest.raises(FrozenInstanceError):
        headroom.available_bytes = 3  # type: ignore[misc]
    assert not hasattr(headroom, "__dict__")


def test_a_unified_limit_counts_usage_but_not_inactive_page_cache(host: FakeHost) -> None:
    host.process_in("0::/user.slice")
    host.unified("/user.slice", 16 * GIB, used=10 * GIB, cache=3 * GIB)
    assert available_host_bytes(root=host.root) == HostHeadroom(
        9 * GIB, "cgroup memory.max of /user.slice", 16 * GIB
    )


def test_a_legacy_limit_counts_the_page_cache_of_the_whole_subtree(host: FakeHost) -> None:
    host.process_in("9:name=systemd:/other", "4:memory:/job", "0::/", mounts=(LEGACY,))
    host.legacy("/job", 16 * GIB, used=10 * GIB, cache=3 * GIB)
    assert available_host_bytes(root=host.root) == HostHeadroom(
        9 * GIB, "cgroup memory.limit_in_bytes of /job", 16 * GIB
    )


def test_a_legacy_controller_is_found_among_several_on_one_mount(host: FakeHost) -> None:
    mount = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,hugetlb,memory"
    host.process_in("4:hugetlb,memory:/job", mounts=(mount,))
    host.legacy("/job", 5 * GIB)
    assert available_host_bytes(root=host.root).available_bytes == 5 * GIB


def test_a_hybrid_host_has_limits_of_both_versions(host: FakeHost) -> None:
    unified = UNIFIED.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    host.process_in("4:memory:/job", "0::/job", mounts=(LEGACY, unified))
    host.legacy("/job", 9 * GIB)
    host.write("sys/fs/cgroup/unified/job/memory.max", f"{8 * GIB}")
    assert available_host_bytes(root=host.root).limited_by == "cgroup memory.max of /job"
    host.legacy("/job", 7 * GIB)
    assert available_host_bytes(root=host.root).limited_by == "cgroup memory.limit_in_bytes of /job"


def test_the_tightest_ancestor_wins_whatever_its_depth(host: FakeHost) -> None:
    host.process_in("0::/a/b/c")
    host.unified("/a", 20 * GIB, used=19 * GIB)
    host.unified("/a/b", "max", used=19 * GIB)
    host.unified("/a/b/c", 8 * GIB)
    assert available_host_bytes(root=host.root) == HostHeadroom(
        1 * GIB, "cgroup memory.max of /a", 20 * GIB
    )


def test_the_root_of_a_container_without_its_own_view_is_its_control_group(
    host: FakeHost,
) -> None:
    mount = LEGACY.replace(" / /sys", " /docker/abc /sys")
    host.process_in("4:memory:/docker/abc/inner", mounts=(mount,))
    host.legacy("/", 3 * GIB)
    host.legacy("/inner", 4 * GIB)
    assert available_host_bytes(root=host.root) == HostHeadroom(
        3 * GIB, "cgroup memory.limit_in_bytes of /docker/abc", 3 * GIB
    )


@pytest.mark.parametrize("path", ["/../../elsewhere", "/host/only/path"])
def test_a_path_outside_of_what_is_mounted_falls_back_to_the_mounted_root(
    host: FakeHost, path: str
) -> None:
    mount = UNIFIED if ".." in path else UNIFIED.replace(" / /sys", " /container /sys")
    host.process_in(f"0::{path}", mounts=(mount,))
    host.unified("/", 2 * GIB)
    host.write("elsewhere/memory.max", "1")
    assert available_host_bytes(root=host.root).available_bytes == 2 * GIB


def test_a_mount_point_with_a_space_is_found(host: FakeHost) -> None:
    mount = UNIFIED.replace("/sys/fs/cgroup ", r"/sys/fs/control\040groups ")
    host.process_in("0::/job", mounts=(mount,))
    host.write("sys/fs/control groups/job/memory.max", f"{6 * GIB}")
    assert available_host_bytes(root=host.root).available_bytes == 6 * GIB


@pytest.mark.parametrize("text", ["max\n", "", "garbage\n"])
def test_a_group_without_a_number_sets_no_limit(host: FakeHost, text: str) -> None:
    host.process_in("0::/job")
    host.write("sys/fs/cgroup/job/memory.max", text)
    assert available_host_bytes(root=host.root).limited_by == "MemAvailable"


def test_the_number_that_means_no_limit_in_version_1_is_not_the_tightest(host: FakeHost) -> None:
    host.process_in("4:memory:/", mounts=(LEGACY,))
    host.legacy("/", NO_LIMIT_V1, used=5 * GIB)
    assert available_host_bytes(root=host.root).limited_by == "MemAvailable"


def test_a_group_beyond_its_limit_leaves_nothing_rather_than_less(host: FakeHost) -> None:
    host.process_in("0::/job")
    host.unified("/job", 2 * GIB, used=3 * GIB)
    assert available_host_bytes(root=host.root).available_bytes == 0


def test_more_page_cache_than_usage_does_not_raise_the_limit(host: FakeHost) -> None:
    host.process_in("0::/job")
    host.unified("/job", 2 * GIB, used=1 * GIB, cache=5 * GIB)
    assert available_host_bytes(root=host.root).available_bytes == 2 * GIB


def test_usage_that_cannot_be_read_leaves_the_whole_limit(host: FakeHost) -> None:
    host.process_in("0::/job")
    host.write("sys/fs/cgroup/job/memory.max", f"{2 * GIB}")
    assert available_host_bytes(root=host.root).available_bytes == 2 * GIB


@pytest.mark.parametrize("meminfo", [None, "", "MemTotal: 8 kB\n"])
def test_an_unknown_amount_of_memory_is_an_error_that_names_the_file(
    tmp_path: Path, meminfo: str | None
) -> None:
    if meminfo is not None:
        FakeHost(tmp_path).write("proc/meminfo", meminfo)
    with pytest.raises(ArenaError, match="proc/meminfo"):
        available_host_bytes(root=tmp_path)


def test_a_refusal_carries_the_numbers_and_the_limit_that_they_come_from(host: FakeHost) -> None:
    host.process_in("0::/job")
    host.unified("/job", 8 * GIB, used=2 * GIB)
    with pytest.raises(HostMemoryLimit) as refusal:
        require_host_bytes(7 * GIB, 1 * GIB, root=host.root)
    error = refusal.value
    assert (error.requested, error.available, error.limit) == (7 * GIB, 6 * GIB, 8 * GIB)
    for part in ("7.00 GiB", "6.00 GiB", "8.00 GiB", "memory.max of /job", "at most 5.00 GiB"):
        assert part in str(error)


def test_a_reserve_beyond_what_is_available_offers_nothing(host: FakeHost) -> None:
    with pytest.raises(HostMemoryLimit, match="at most 0 bytes"):
        require_host_bytes(1, 41 * GIB, root=host.root)


@pytest.mark.parametrize(("requested", "reserve"), [(-1, 0), (0, -1)])
def test_negative_sizes_are_refused(host: FakeHost, requested: int, reserve: int) -> None:
    with pytest.raises(InvalidSize):
        require_host_bytes(requested, reserve, root=host.root)


@settings(deadline=None)
@given(
    available=st.integers(0, 2**30),
    requested=st.integers(0, 2**31),
    reserve=st.integers(0, 2**31),
)
def test_a_request_passes_exactly_if_it_and_the_reserve_fit(
    available: int, requested: int, reserve: int
) -> None:
    available -= available % 1024
    with tempfile.TemporaryDirectory() as directory:
        host = FakeHost(Path(directory))
        host.memory(2**31, available)
        if requested + reserve <= available:
            assert require_host_bytes(requested, reserve, root=host.root).limited_by
        else:
            with pytest.raises(HostMemoryLimit):
                require_host_bytes(requested, reserve, root=host.root)


@settings(deadline=None)
@given(
    available=st.integers(0, 2**22).map(lambda pages: pages * 1024),
    groups=st.lists(
        st.tuples(
            st.one_of(st.just("max"), st.integers(0, 2**32)),
            st.integers(0, 2**32),
            st.integers(0, 2**32),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_the_headroom_is_the_smallest_of_all_limits_and_never_negative(
    available: int, groups: list[tuple[int | str, int, int]]
) -> None:
    expected = [available]
    with tempfile.TemporaryDirectory() as directory:
        host = FakeHost(Path(directory))
        host.memory(2**32, available)
        path = ""
        for depth, (limit, used, cache) in enumerate(groups):
            path += f"/level{depth}"
            host.unified(path, limit, used, cache)
            if isinstance(limit, int):
                expected.append(max(0, limit - max(0, used - cache)))
        host.process_in(f"0::{path}")
        assert available_host_bytes(root=host.root).available_bytes == min(expected)


def test_the_walk_goes_from_the_own_group_up_to_the_root(host: FakeHost) -> None:
    host.process_in("0::/a/b")
    base = host.root / "sys/fs/cgroup"
    assert list(cgroup_directories("", root=host.root)) == [
        ("/a/b", base / "a/b"),
        ("/a", base / "a"),
        ("/", base),
    ]


def test_this_host_gives_less_than_it_has() -> None:
    headroom = available_host_bytes()
    assert headroom.available_bytes >= 0
    assert headroom.total_bytes > 0
    if headroom.limited_by == "MemAvailable":
        assert headroom.available_bytes <= headroom.total_bytes
