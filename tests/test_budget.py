"""The budget: what would not fit is a MemoryError with the figures before a page is touched, no signal."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import pool_files, write

import tlbprobe as tp
from tlbprobe.machine import limits, paging
from tlbprobe.memory.budget import MARGIN, Need, budget, check_budget, fit_together, page_table_bytes
from tlbprobe.memory.policies import PagePolicy, mapped_size
from tlbprobe.units import page_suffix, parse_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BASE = paging.base_page_size()
ORDINARY = PagePolicy("base", "base", BASE)
POOLED = PagePolicy("hugetlb", "hugetlb", 2 * MIB)


@pytest.fixture
def roomy(tmp_path):
    """A machine of 1 TiB without any limit."""
    return write(tmp_path, {"proc/meminfo": f"MemAvailable: {GIB} kB", "proc/self/maps": ""})


def largest_fit(error):
    found = re.search(r"the largest size that would fit is ([0-9.]+ ?[KMGT]?i?B)", str(error))
    return parse_size(found[1]) if found else 0


def refusal(mapped, policy, root):
    with pytest.raises(MemoryError) as refused:
        check_budget(mapped, policy, "this", root)
    return refused.value


# --- figures ---------------------------------------------------------------------------------------------


def test_what_fits_is_let_through(roomy):
    check_budget(GIB, ORDINARY, "this", root=roomy)


def test_unknown_figures_refuse_nothing(tmp_path):
    check_budget(1 << 50, ORDINARY, "this", root=tmp_path)


def test_page_tables_are_included(roomy):
    (need,) = (need for need in budget(512 * GIB, ORDINARY, root=roomy) if "MemAvailable" in need.resource)
    tables = 512 * GIB // BASE * 8
    assert page_table_bytes(512 * GIB) == tables
    assert need.needed - need.fixed == 512 * GIB + tables
    write(roomy, {"proc/meminfo": f"MemAvailable: {(512 * GIB + MARGIN + tables // 2) >> 10} kB"})
    refusal(512 * GIB, ORDINARY, roomy)


@pytest.mark.parametrize("base", [4 * KIB, 16 * KIB, 64 * KIB])
def test_page_tables_follow_the_base_page(monkeypatch, base):
    monkeypatch.setattr(paging, "base_page_size", lambda: base)
    assert page_table_bytes(64 * GIB) == 64 * GIB // base * 8


@pytest.mark.parametrize("size", [64 * KIB, 2 * MIB, GIB])
def test_small_hugetlb_pages_need_page_tables_too(roomy, monkeypatch, size):
    monkeypatch.setattr(paging, "base_page_size", lambda: 4 * KIB)
    need = budget(64 * GIB, PagePolicy("hugetlb", "hugetlb", size), root=roomy)[0]
    assert need.needed - need.fixed == (page_table_bytes(64 * GIB) if size < 2 * MIB else 0)


def test_collapsing_needs_one_huge_page_more(roomy):
    policy = PagePolicy("collapse", "collapse", 512 * MIB)
    needs = budget(GIB, policy, root=roomy)[0], budget(GIB, ORDINARY, root=roomy)[0]
    assert needs[0].needed - needs[1].needed == 512 * MIB


def test_the_message_has_the_figures(roomy):
    write(roomy, {"proc/meminfo": f"MemAvailable: {3 * MIB} kB"})
    text = str(refusal(8 * GIB, ORDINARY, roomy))
    assert re.search(r"this needs 8.08 GiB .*MemAvailable .* has 3 GiB left; the largest size", text)


def test_where_nothing_fits_it_says_so(roomy):
    write(roomy, {"proc/meminfo": "MemAvailable: 1024 kB"})
    assert "no size would fit" in str(refusal(BASE, ORDINARY, roomy))


@given(
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 38),
    st.sampled_from([4 * KIB, 64 * KIB, 2 * MIB, 512 * MIB]),
    st.sampled_from(["base", "thp", "collapse"]),
)
def test_the_largest_size_that_would_fit_fits_and_is_the_largest(tmp_path_factory, size, left, page, kind):
    root = write(tmp_path_factory.getbasetemp() / "any", {"proc/meminfo": f"MemAvailable: {left >> 10} kB"})
    policy = PagePolicy("any", kind, page)
    mapped = mapped_size(size, policy)
    try:
        check_budget(mapped, policy, "this", root)
    except MemoryError as error:
        fits = largest_fit(error)
        assert fits % page == 0
        assert fits < mapped
        if fits:
            check_budget(fits, policy, "this", root)
        with pytest.raises(MemoryError):  # by a part of 64, since what is left moves
            check_budget(mapped_size(fits + fits // 63 + 1, policy), policy, "this", root)


@given(st.integers(1, 1 << 60), st.integers(0, 1 << 60), st.integers(0, 1 << 30))
def test_fitting_is_never_negative_nor_too_much(mapped, available, fixed):
    fits = Need("any", mapped + fixed, available, fixed).fitting(mapped)
    assert fits >= 0
    assert fits == 0 or fits + fixed <= available


# --- control groups, made up -----------------------------------------------------------------------------

V1 = "25 20 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V2 = "26 20 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup rw"


def v1(limits, path="/a/b"):
    folder = "sys/fs/cgroup/memory"
    files = {"proc/self/mountinfo": V1, "proc/self/cgroup": f"4:memory:{path}"}
    for name, (limit, usage) in limits.items():
        files[f"{folder}{name}/memory.limit_in_bytes"] = limit
        files[f"{folder}{name}/memory.usage_in_bytes"] = usage
    return files


def v2(limits, path="/a/b"):
    files = {"proc/self/mountinfo": V2, "proc/self/cgroup": f"0::{path}"}
    for name, (limit, usage) in limits.items():
        files[f"sys/fs/cgroup{name}/memory.max"] = limit
        files[f"sys/fs/cgroup{name}/memory.current"] = usage
    return files


UNLIMITED = {v1: 9223372036854771712, v2: "max"}


@pytest.mark.parametrize("version", [v1, v2])
@pytest.mark.parametrize("tight", ["/a/b", "/a", ""])
def test_the_tightest_group_above_counts(roomy, version, tight):
    limits = dict.fromkeys(("/a/b", "/a", ""), (UNLIMITED[version], MIB))
    write(roomy, version({**limits, tight: (GIB, 256 * MIB)}))
    error = refusal(GIB, ORDINARY, roomy)
    assert "control group limit" in str(error)
    assert "768 MiB left" in str(error)
    assert largest_fit(error) < 768 * MIB - MARGIN
    check_budget(largest_fit(error), ORDINARY, "this", root=roomy)


@pytest.mark.parametrize("version", [v1, v2])
def test_unlimited_groups_refuse_nothing(roomy, version):
    write(roomy, version({"/a/b": (UNLIMITED[version], MIB)}))
    check_budget(512 * GIB, ORDINARY, "this", root=roomy)


@pytest.mark.parametrize("version", [v1, v2])
def test_a_group_beyond_its_limit_has_nothing_left(roomy, version):
    write(roomy, version({"/a": (GIB, 2 * GIB)}))
    assert "no size would fit" in str(refusal(BASE, ORDINARY, roomy))


def test_page_cache_of_a_group_gives_way(roomy):
    files = {**v2({"/a": (GIB, GIB)}), "sys/fs/cgroup/a/memory.stat": f"inactive_file {512 * MIB}"}
    write(roomy, files)
    check_budget(256 * MIB, ORDINARY, "this", root=roomy)


def test_hugetlb_groups_limit_their_own_page_size(roomy):
    files = {
        **v2({}),
        "sys/fs/cgroup/a/hugetlb.2MB.max": 8 * MIB,
        "sys/fs/cgroup/a/hugetlb.2MB.current": 2 * MIB,
    }
    write(roomy, {**files, **pool_files(2 * MIB, total=100, free=100)})
    error = refusal(16 * MIB, POOLED, roomy)
    assert "hugetlb.2MB.max" in str(error)
    assert largest_fit(error) == 6 * MIB
    check_budget(6 * MIB, POOLED, "this", root=roomy)
    check_budget(GIB, ORDINARY, "this", root=roomy)
    check_budget(GIB, PagePolicy("hugetlb-1G", "hugetlb", GIB), "this", root=roomy)


# --- pools, made up --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "fits", "wanted"),
    [
        ({}, 0, 10),
        ({"total": 4, "free": 4}, 4, 10),
        ({"total": 20, "free": 4}, 4, 26),
        ({"total": 8, "free": 8, "reserved": 5}, 3, 15),
        ({"total": 4, "free": 4, "overcommit": 3}, 7, 10),
        ({"total": 6, "free": 4, "surplus": 2, "overcommit": 3}, 5, 12),
        ({"total": 4, "free": 2, "reserved": 4}, 0, 14),
    ],
)
def test_a_pool_too_small_says_what_fits_and_the_command(roomy, counts, fits, wanted):
    write(roomy, pool_files(2 * MIB, **counts))
    error = refusal(20 * MIB, POOLED, roomy)
    assert largest_fit(error) == fits * 2 * MIB
    command = f"echo {wanted} | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    assert str(error).endswith(command)
    if fits:
        check_budget(fits * 2 * MIB, POOLED, "this", root=roomy)


def test_pages_that_a_pool_has_need_no_ordinary_memory(roomy):
    write(roomy, {"proc/meminfo": "MemAvailable: 81920 kB", **pool_files(2 * MIB, 4096, 4096)})
    check_budget(8 * GIB, POOLED, "this", root=roomy)


def test_pages_that_a_pool_would_grow_by_come_out_of_ordinary_memory(roomy):
    available = MARGIN + 101 * MIB
    write(roomy, {"proc/meminfo": f"MemAvailable: {available >> 10} kB"})
    write(roomy, pool_files(2 * MIB, overcommit=4096))
    error = refusal(GIB, POOLED, roomy)
    assert largest_fit(error) == 100 * MIB
    check_budget(100 * MIB, POOLED, "this", root=roomy)


def test_hugetlb_without_ordinary_memory_for_the_rest_fits_not_at_all(roomy):
    write(roomy, {"proc/meminfo": "MemAvailable: 1024 kB", **pool_files(2 * MIB, total=100, free=100)})
    assert "no size would fit" in str(refusal(2 * MIB, POOLED, roomy))


# --- mappings --------------------------------------------------------------------------------------------


def test_split_mappings_count_against_max_map_count(roomy, monkeypatch):
    monkeypatch.setattr("tlbprobe.memory.budget.piece_of", lambda policy: 64 * KIB)
    write(roomy, {"proc/sys/vm/max_map_count": 1064, "proc/self/maps": "line\n" * 99 + "line"})
    policy = PagePolicy("thp-64K", "mthp", 64 * KIB)
    error = refusal(64 * MIB, policy, roomy)
    assert largest_fit(error) == 900 * 64 * KIB
    assert str(error).endswith("sudo sysctl vm.max_map_count=1188")
    check_budget(900 * 64 * KIB, policy, "this", root=roomy)
    write(roomy, {"proc/sys/vm/max_map_count": 1188})
    check_budget(64 * MIB, policy, "this", root=roomy)


# --- this machine ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [policy.name for policy in tp.page_policies() if policy.offered])
def test_enormous_sizes_are_refused_before_anything_is_mapped(monkeypatch, name):
    monkeypatch.setattr(tp.Region, "_map", lambda *_: pytest.fail("mapped"))
    for size in ("4194304T", "1T", 1 << 62):
        with pytest.raises(MemoryError, match=r"Region.*needs .* left; "):
            tp.Region(size, name)


def test_probes_are_refused_before_anything_is_mapped(monkeypatch):
    monkeypatch.setattr(tp.Region, "_map", lambda *_: pytest.fail("mapped"))
    for probe in (tp.chase, tp.translation):
        with pytest.raises(MemoryError, match=r"6[45].* TiB"):
            probe("64T")


@pytest.mark.no_asan
@pytest.mark.parametrize("name", ["base", "default", "thp", "collapse"])
def test_address_space_limit(run_python, name):
    """Under `ulimit -v` too, what is said to fit does, with a measurement on it."""
    if name not in {policy.name for policy in tp.page_policies() if policy.offered}:
        pytest.skip(f"this machine does not offer {name!r}")
    found = run_python(
        f"""
        import re
        tp.chase("64KiB", max_seconds=0.05)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * BASE
        resource.setrlimit(resource.RLIMIT_AS, (used + 96 * MIB, resource.RLIM_INFINITY))
        before = Path("/proc/self/maps").read_text().count(chr(10))
        refused = caught(tp.Region, GIB, {name!r})
        after = Path("/proc/self/maps").read_text().count(chr(10))
        fits = re.search("would fit is (.*iB);", refused[1])[1]
        with tp.Region(fits, {name!r}) as region:
            measured = tp.chase(region, max_seconds=0.05)
            mapped = region.mapped_bytes
        answer([refused, after - before, mapped, measured.low > 0])
        """
    )
    refused, leaked, mapped, measured = found
    assert refused[0] == "MemoryError"
    assert "RLIMIT_AS" in refused[1]
    assert "ulimit -v unlimited" in refused[1]
    assert leaked <= 1
    assert mapped >= 64 * MIB
    assert measured


@pytest.mark.no_asan
def test_limits_that_no_budget_knows_are_memory_errors_too(run_python):
    """RLIMIT_DATA refuses memory whose range is reserved already: nothing may stay behind."""
    found = run_python(
        """
        def mappings():
            return Path("/proc/self/maps").read_text().count(chr(10))
        caught(tp.Region, MIB)
        before = mappings()
        used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * KIB
        resource.setrlimit(resource.RLIMIT_DATA, (used + 32 * MIB, resource.RLIM_INFINITY))
        refused = [caught(tp.Region, 64 * MIB, "default") for _ in range(20)]
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        answer([refused[-1], mappings() - before])
        """
    )
    assert found[0][0] == "MemoryError"
    assert "ulimit -d" in found[0][1]
    assert found[1] <= 2


@pytest.mark.no_asan
@pytest.mark.parametrize("name", ["base", "thp"])
def test_a_control_group_limit_is_an_error_and_no_killing(run_python, group, name):
    if name not in {policy.name for policy in tp.page_policies() if policy.offered}:
        pytest.skip(f"this machine does not offer {name!r}")
    version_1 = ":memory:" in Path("/proc/self/cgroup").read_text()
    path = group("memory", {"memory.limit_in_bytes" if version_1 else "memory.max": 256 * MIB})
    found = run_python(
        f"""
        import re
        Path({str(path)!r}, "cgroup.procs").write_text(str(os.getpid()))
        refused = caught(tp.Region, 256 * MIB, {name!r}), caught(tp.chase, 256 * MIB, {name!r})
        fits = re.search("would fit is ([0-9.]+ .iB)", refused[0][1])[1]
        with tp.Region(fits, {name!r}) as region:
            answer([refused, region.mapped_bytes, tp.chase(region, max_seconds=0.05).low > 0])
        """
    )
    refused, mapped, measured = found
    for kind, text, _ in refused:
        assert kind == "MemoryError"
        assert "control group limit" in text
    assert 64 * MIB <= mapped < 256 * MIB
    assert measured


# --- a pool of a known size ------------------------------------------------------------------------------

POOL_SIZE = paging.default_hugetlb_size()
POOL = f"/sys/kernel/mm/hugepages/hugepages-{(POOL_SIZE or 0) >> 10}kB"


@pytest.fixture
def reserved(setting):
    """Reserve pages in the pool of the default size."""
    if POOL_SIZE is None or POOL_SIZE > 64 * MIB:
        pytest.skip("no pool of a size that a test may fill")

    def reserve(count, overcommit=0):
        setting(f"{POOL}/nr_overcommit_hugepages", overcommit)
        setting(f"{POOL}/nr_hugepages", count)
        if paging.hugetlb_pools()[POOL_SIZE].available != count:
            pytest.skip("the kernel could not fill the pool")

    return reserve


def test_a_pool_that_fits_to_the_page(reserved):
    reserved(4)
    with tp.Region(3 * POOL_SIZE + 1, "hugetlb") as region:
        assert region.mapped_bytes == 4 * POOL_SIZE
        assert (region.backing().page_size, region.backing().proof) == (POOL_SIZE, "proved")
        assert region.backing(1).page_size == POOL_SIZE
        assert region.address % POOL_SIZE == 0
        assert paging.hugetlb_pools()[POOL_SIZE].free == 0
    assert paging.hugetlb_pools()[POOL_SIZE].free == 4


def test_hugetlb_folios(reserved):
    reserved(2)
    with tp.Region(2 * POOL_SIZE, "hugetlb") as region:
        try:
            found = [region.backing(size, folios=True) for size in (1, 2 * POOL_SIZE)]
        except PermissionError as error:
            pytest.skip(f"needs root: {error}")
        assert [(one.page_size, one.proof) for one in found] == [(POOL_SIZE, "proved")] * 2


def test_a_pool_that_is_partly_free(reserved, monkeypatch):
    reserved(4)
    with tp.Region(3 * POOL_SIZE, "hugetlb"):
        with monkeypatch.context() as patch:
            patch.setattr(tp.Region, "_map", lambda *_: pytest.fail("mapped"))
            with pytest.raises(MemoryError, match="largest size that would fit is") as refused:
                tp.Region(2 * POOL_SIZE, "hugetlb")
        assert f"echo 5 | sudo tee {POOL}/nr_hugepages" in str(refused.value)
        assert largest_fit(refused.value) == POOL_SIZE
        with tp.Region(largest_fit(refused.value), "hugetlb") as second:
            assert second.backing().page_size == POOL_SIZE
            with pytest.raises(MemoryError, match="no size would fit"):
                tp.Region(1, "hugetlb")


@pytest.mark.parametrize("strict", [True, False])
def test_an_empty_pool(reserved, strict):
    reserved(0)
    with pytest.raises(MemoryError, match=f"echo 3 . sudo tee {POOL}/nr_hugepages"):
        tp.Region(3 * POOL_SIZE, "hugetlb", strict=strict)


def test_a_pool_may_grow_as_far_as_it_is_allowed(reserved):
    reserved(1, overcommit=2)
    with pytest.raises(MemoryError) as refused:
        tp.Region(4 * POOL_SIZE, "hugetlb")
    assert largest_fit(refused.value) == 3 * POOL_SIZE
    with tp.Region(3 * POOL_SIZE, "hugetlb") as region:
        assert region.backing().page_size == POOL_SIZE


def test_a_pool_taken_between_the_budget_and_the_mapping_is_a_memory_error(reserved, monkeypatch):
    reserved(2)
    with tp.Region(2 * POOL_SIZE, "hugetlb"):
        monkeypatch.setattr("tlbprobe.memory.region.check_budget", lambda *_: None)
        with pytest.raises(MemoryError, match="another process"):
            tp.Region(POOL_SIZE, "hugetlb", strict=False)


@pytest.mark.parametrize("filtered", [False, True], ids=["madvise", "read"])
def test_pages_that_vanish_before_they_are_populated_are_no_signal(reserved, run_python, group, filtered):
    """A control group refuses hugetlb pages only when they are touched: a touch would be SIGBUS."""
    reserved(4)
    name = f"hugetlb.{POOL_SIZE >> 20}MB"
    path = group("hugetlb", {f"{name}.max": 2 * POOL_SIZE})
    found = run_python(
        f"""
        Path({str(path)!r}, "cgroup.procs").write_text(str(os.getpid()))
        if {filtered}:
            refuse(MADVISE, errno.EACCES)
        budgeted = caught(tp.Region, 4 * {POOL_SIZE}, "hugetlb")
        budget.check_budget = lambda *_: None
        forced = caught(tp.Region, 4 * {POOL_SIZE}, "hugetlb")
        with tp.Region(2 * {POOL_SIZE}, "hugetlb") as region:
            answer([budgeted, forced, region.backing().page_size])
        """
    )
    assert found[0][0] == found[1][0] == "MemoryError"
    assert "control group limit" in found[0][1]
    assert name in found[0][1]
    assert found[2] == POOL_SIZE
    assert paging.hugetlb_pools()[POOL_SIZE].free == 4


def test_gigantic_pages(setting):
    sizes = [size for size in paging.hugetlb_pools() if size != POOL_SIZE and size <= GIB]
    if not sizes or (limits.memory_available() or 0) < 8 * GIB:
        pytest.skip("no other hugetlb size, or not the memory for one")
    size = sizes[-1]
    name = f"hugetlb-{page_suffix(size)}"
    setting(f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB/nr_hugepages", 1)
    if paging.hugetlb_pools()[size].available != 1:
        pytest.skip("no contiguous memory for one")
    with tp.Region(1, name) as region:
        assert region.mapped_bytes == size
        assert (region.backing().page_size, region.backing().proof) == (size, "proved")
        assert region.backing(MIB).page_size == size
    with pytest.raises(MemoryError, match="echo 2"):
        tp.Region(size + 1, name)


# --- several regions at once -----------------------------------------------------------------------------


def test_regions_fit_together_or_not(roomy):
    write(roomy, {"proc/meminfo": f"MemAvailable: {10 * MIB} kB"})  # 10 GiB
    pool = PagePolicy("hugetlb", "hugetlb", 2 * MIB)
    assert fit_together([], roomy)
    assert fit_together([(4 * GIB, ORDINARY), (4 * GIB, ORDINARY), (900 * GIB, pool)], roomy)
    assert not fit_together([(4 * GIB, ORDINARY)] * 3, roomy)


def test_split_mappings_are_counted_together(roomy, monkeypatch):
    monkeypatch.setattr(
        "tlbprobe.memory.budget.piece_of", lambda policy: 64 * KIB if policy.kind == "mthp" else 0
    )
    monkeypatch.setattr("tlbprobe.memory.budget._mappings_left", lambda _: 1000)
    mthp = PagePolicy("thp-64K", "mthp", 64 * KIB)
    assert fit_together([(999 * 64 * KIB, mthp), (GIB, ORDINARY)], roomy)
    assert not fit_together([(600 * 64 * KIB, mthp)] * 2, roomy)


def test_no_command_is_named_that_would_take_all_memory(roomy):
    write(roomy, {"proc/meminfo": f"MemAvailable: {10 * MIB} kB\nHugepagesize: 2048 kB"})  # 10 GiB
    write(roomy, pool_files(2 * MIB))
    pool = PagePolicy("hugetlb", "hugetlb", 2 * MIB)
    assert "echo 2048 | sudo tee" in str(refusal(4 * GIB, pool, roomy))
    assert "sudo" not in str(refusal(1 << 50, pool, roomy))
