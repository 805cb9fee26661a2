"""Page policies and proofs: what is asked, what the kernel gave, and what may be called proved.

Policies of machines that cannot be had here come from made-up trees of /sys; proofs are tested on forced
situations where this machine lets a test switch its settings, and as pure functions everywhere.
"""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import pool_files, write

import tlbprobe as tp
from tlbprobe.machine import paging
from tlbprobe.machine.smaps import huge_bytes, resident_bytes, sum_smaps
from tlbprobe.memory.backing import Backing, Scan, judge_backing
from tlbprobe.memory.folios import folio_shares, folio_sizes, judge_folios
from tlbprobe.memory.policies import (
    PagePolicy,
    alignment_of,
    find_policy,
    mapped_size,
    piece_of,
    possible_sizes,
)
from tlbprobe.units import page_suffix

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
THP = "sys/kernel/mm/transparent_hugepage"
BASE = paging.base_page_size()
PMD = paging.pmd_size()
COUNTS_FAULTS = pytest.mark.no_asan  # whose own memory takes faults too
PRESENT_THP = pytest.mark.skipif(PMD is None, reason="this kernel has no transparent huge pages")


def thp_files(pmd, mode, **modes):
    choices = ("always", "inherit", "madvise", "never")
    named = {
        f"{THP}/hugepages-{size}kB/enabled": " ".join(f"[{c}]" if c == m else c for c in choices)
        for size, m in ((name.removeprefix("kb"), m) for name, m in modes.items())
    }
    return {f"{THP}/hpage_pmd_size": pmd, f"{THP}/enabled": f"[{mode}]", **named}


@pytest.fixture
def big_pages(tmp_path, monkeypatch):
    """A machine of 64 KiB base pages, 512 MiB PMD pages and hugetlb pages of three sizes."""
    root = write(
        tmp_path,
        {
            **thp_files(512 * MIB, "madvise", kb128="never", kb2048="madvise", kb524288="inherit"),
            **pool_files(2 * MIB),
            **pool_files(512 * MIB, total=3, free=2, reserved=1),
            **pool_files(16 * GIB),
            "proc/meminfo": "MemAvailable: 1048576 kB\nHugepagesize: 524288 kB",
        },
    )
    monkeypatch.setattr(paging, "base_page_size", lambda: 64 * KIB)
    for name in ("pmd_size", "thp_mode", "mthp_modes", "hugetlb_pools", "default_hugetlb_size"):
        reader = getattr(paging, name)
        monkeypatch.setattr(paging, name, lambda root=tmp_path, reader=reader: reader(tmp_path))
    return root


# --- policies --------------------------------------------------------------------------------------------


def offers(root):
    return {policy.name: policy.offered for policy in tp.page_policies(root)}


def test_base_and_default_are_offered_everywhere(tmp_path):
    assert offers(tmp_path) == {"base": True, "default": True}


def test_policies_take_their_sizes_from_the_system(big_pages):
    assert {policy.name: policy.page_size for policy in tp.page_policies()} == {
        "base": 64 * KIB,
        "default": None,
        "thp-128K": 128 * KIB,
        "thp-2M": 2 * MIB,
        "thp": 512 * MIB,
        "collapse": 512 * MIB,
        "hugetlb-2M": 2 * MIB,
        "hugetlb": 512 * MIB,
        "hugetlb-16G": 16 * GIB,
    }
    assert [name for name, offered in offers("/").items() if not offered] == [
        "thp-128K",
        "hugetlb-2M",
        "hugetlb-16G",
    ]


@pytest.mark.parametrize("mode", ["always", "madvise", "never"])
def test_inherited_modes_are_those_of_the_whole(tmp_path, mode):
    write(tmp_path, thp_files(2 * MIB, mode, kb64="inherit", kb128="madvise", kb2048="inherit"))
    on = mode != "never"
    found = offers(tmp_path)
    assert (found["thp-64K"], found["thp-128K"], found["thp"], found["collapse"]) == (on, True, on, True)


def test_the_command_names_the_file_that_decides(tmp_path):
    write(tmp_path, thp_files(2 * MIB, "never", kb64="never", kb128="inherit", kb2048="inherit"))
    commands = {policy.name: policy.command for policy in tp.page_policies(tmp_path)}
    assert commands["thp-64K"].endswith(f"echo madvise | sudo tee /{THP}/hugepages-64kB/enabled")
    assert commands["thp-128K"] == commands["thp"] == f"echo madvise | sudo tee /{THP}/enabled"


def test_kernels_before_mthp_have_thp_only(tmp_path):
    write(tmp_path, thp_files(2 * MIB, "always"))
    assert offers(tmp_path) == {"base": True, "default": True, "thp": True, "collapse": True}


@pytest.mark.parametrize("disabled", [0, 1, 3, None])
def test_prctl_takes_all_transparent_pages_unless_advised_ones_are_excepted(tmp_path, monkeypatch, disabled):
    monkeypatch.setattr(paging, "thp_disabled", lambda: disabled)
    write(tmp_path, thp_files(2 * MIB, "always", kb64="always", kb2048="inherit"))
    found = offers(tmp_path)
    assert {found[name] for name in ("thp", "thp-64K", "collapse")} == {disabled != 1}


@pytest.mark.parametrize(
    ("counts", "offered"),
    [
        ({}, False),
        ({"total": 4}, False),
        ({"total": 4, "free": 4, "reserved": 4}, False),
        ({"total": 4, "free": 1}, True),
        ({"overcommit": 2}, True),
        ({"total": 2, "surplus": 2, "overcommit": 2}, False),
    ],
)
def test_a_pool_is_offered_while_a_page_of_it_can_be_had(tmp_path, counts, offered):
    write(tmp_path, {**pool_files(2 * MIB, **counts), "proc/meminfo": "Hugepagesize: 2048 kB"})
    policy = tp.page_policies(tmp_path)[-1]
    assert (policy.name, policy.offered) == ("hugetlb", offered)
    assert offered or "nr_hugepages" in policy.command


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("thp-512M", "thp"),
        ("thp-128k", "thp-128K"),
        ("hugetlb-512M", "hugetlb"),
        ("hugetlb-16g", "hugetlb-16G"),
        ("thp-2m", "thp-2M"),
    ],
)
def test_every_size_may_be_written_out(big_pages, alias, name):
    assert find_policy(alias).name == name


@pytest.mark.parametrize(
    "name", ["", "huge", "thp-", "thp-3K", "base-4K", "THP", "hugetlb-64K", "thp-16G", " thp"]
)
def test_unknown_policies_are_refused_with_the_names_there_are(big_pages, name):
    with pytest.raises(ValueError, match=r"pages='.*' is no page policy.*base, default, .*hugetlb-16G"):
        find_policy(name)


@pytest.mark.parametrize("name", [None, 4096, b"base", ["base"]])
def test_policies_are_named_by_strings(name):
    with pytest.raises(TypeError, match="pages="):
        find_policy(name)


# --- sizes of mappings -----------------------------------------------------------------------------------


@given(st.integers(1, 1 << 40), st.sampled_from([None, 1 << 12, 1 << 14, 1 << 16, 1 << 21, 1 << 25, 1 << 29]))
def test_mapped_sizes_are_whole_pages_and_never_less(size, page):
    page = max(page or 0, BASE)
    mapped = mapped_size(size, PagePolicy("any", "thp", page))
    assert mapped % page == 0
    assert 0 <= mapped - size < page


@pytest.mark.parametrize(
    ("name", "mapped"),
    [
        ("base", 64 * KIB),
        ("default", 64 * KIB),
        ("thp-2M", 2 * MIB),
        ("thp", 512 * MIB),
        ("hugetlb-16G", 16 * GIB),
    ],
)
def test_one_byte_maps_one_page_of_the_policy(big_pages, name, mapped):
    assert mapped_size(1, find_policy(name)) == mapped


@pytest.mark.parametrize(
    "name", ["base", "default", "thp-2M", "thp", "collapse", "hugetlb-2M", "hugetlb-16G"]
)
def test_alignment_is_that_of_the_largest_page_which_may_come(big_pages, name):
    policy = find_policy(name)
    assert alignment_of(policy) == max(512 * MIB, policy.page_size or 0)


def test_mappings_are_split_below_the_next_larger_size_that_is_enabled(tmp_path, big_pages):
    assert piece_of(find_policy("thp-128K")) == MIB
    assert piece_of(find_policy("thp-2M")) == 256 * MIB
    write(tmp_path, thp_files(512 * MIB, "never", kb256="always"))
    assert piece_of(find_policy("thp-128K")) == 128 * KIB
    assert piece_of(find_policy("thp-2M")) == 0
    assert {piece_of(find_policy(name)) for name in ("base", "default", "thp", "hugetlb")} == {0}


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        ("base", [64]),
        ("hugetlb", [64]),
        ("default", [64, 256]),
        ("collapse", [64, 256]),
        ("thp-128K", [64]),
        ("thp-2M", [64, 256, 2048]),
        ("thp", [64, 256, 2048]),
    ],
)
def test_pages_may_come_in_sizes_that_are_enabled_for_the_advice(tmp_path, big_pages, name, possible):
    write(tmp_path, thp_files(512 * MIB, "never", kb256="always"))
    assert possible_sizes(find_policy(name)) == [size * KIB for size in possible]


# --- judging ---------------------------------------------------------------------------------------------

THP_POLICY = PagePolicy("thp", "thp", 2 * MIB)
ANY_POLICY = PagePolicy("default", "default", None)


def scan(size, present=None, huge=0, zero=0, swapped=0):
    return Scan(size, size if present is None else present, huge, zero, swapped, "PAGEMAP_SCAN")


def test_nothing_readable_is_unknown():
    found = judge_backing(ANY_POLICY, None, 4096, 2 * MIB)
    assert (found.proof, found.page_size, found.shares) == ("unknown", None, {})
    assert "smaps" in found.note


@pytest.mark.parametrize("huge", [2 * MIB, 32 * MIB, 512 * MIB, GIB])
def test_huge_pages_are_proved_with_the_size_of_the_system(huge):
    found = judge_backing(THP_POLICY, scan(4 * huge, huge=4 * huge), None, huge)
    assert (found.page_size, found.shares, found.proof) == (huge, {huge: 1.0}, "proved")


@pytest.mark.parametrize("base", [4 * KIB, 16 * KIB, 64 * KIB])
def test_base_pages_are_proved_where_no_other_size_is_possible(base):
    found = judge_backing(ANY_POLICY, scan(8 * base), base, None)
    assert (found.page_size, found.shares, found.proof) == (base, {base: 1.0}, "proved")


@pytest.mark.parametrize("granule", [4 * KIB, 64 * KIB])
def test_counted_sizes_are_consistent_not_proved(granule):
    found = judge_backing(ANY_POLICY, scan(MIB), granule, 2 * MIB, counted=True)
    assert (found.page_size, found.proof) == (granule, "consistent")


def test_counting_does_not_weaken_the_proof_of_huge_pages():
    assert (
        judge_backing(THP_POLICY, scan(4 * MIB, huge=4 * MIB), None, 2 * MIB, counted=True).proof == "proved"
    )


def test_mixtures_have_shares_and_no_one_size():
    found = judge_backing(ANY_POLICY, scan(8 * MIB, huge=2 * MIB), 4096, 2 * MIB)
    assert found.page_size is None
    assert found.shares == {2 * MIB: 0.25, 4096: 0.75}
    assert found.proof == "proved"
    assert "25.0% 2 MiB" in str(found)


@pytest.mark.parametrize(
    ("seen", "granule", "note"),
    [
        (scan(8 * MIB, present=8 * MIB - 4096), 4096, "4 KiB not in memory"),
        (scan(8 * MIB, zero=2 * MIB), 4096, "2 MiB shared zero page"),
        (scan(8 * MIB, present=6 * MIB, swapped=2 * MIB), 4096, "2 MiB swapped out"),
        (scan(8 * MIB, huge=2 * MIB, zero=2 * MIB), 4096, "zero page"),
        (scan(8 * MIB), None, "uneven"),
        (scan(8 * MIB, present=0), 4096, "8 MiB not in memory"),
    ],
)
def test_what_is_not_wholly_there_is_never_proved(seen, granule, note):
    found = judge_backing(ANY_POLICY, seen, granule, 2 * MIB)
    assert (found.proof, found.page_size) == ("unknown", None)
    assert note in found.note


def test_huge_pages_of_unknown_size_are_unknown():
    assert (
        judge_backing(
            PagePolicy("hugetlb", "hugetlb", 2 * MIB), scan(2 * MIB, huge=2 * MIB), 4096, None
        ).proof
        == "unknown"
    )


@given(st.lists(st.integers(0, 64), min_size=4, max_size=4), st.sampled_from([None, 4096]))
def test_proof_means_all_bytes_accounted_for(parts, granule):
    huge, small, swapped, absent = (part * 2 * MIB for part in parts)
    size = huge + small + swapped + absent
    if not size:
        return
    found = judge_backing(ANY_POLICY, Scan(size, huge + small, huge, 0, swapped, "made up"), granule, 2 * MIB)
    complete = swapped == absent == 0 and (granule or not small)
    assert (found.proof == "proved") == bool(complete)
    assert sum(found.shares.values()) <= 1 + 1e-9
    assert found.page_size is None or complete


# --- smaps -----------------------------------------------------------------------------------------------

SMAPS = """\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0 
Size:               2048 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                2048 kB
AnonHugePages:      2048 kB
Swap:                  8 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac sd hg 
7f0000200000-7f0000400000 rw-p 00000000 00:00 0                          [anon: a name]
KernelPageSize:       64 kB
Rss:                 100 kB
Private_Hugetlb:      12 kB
7f0000400000-7f0000600000 ---p 00000000 00:00 0 
Rss:                   7 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Rss:                1000 kB
"""  # noqa: W291 - as the kernel writes it


@pytest.mark.parametrize(
    ("start", "end", "rss"),
    [
        (0, 2, 2048),
        (0, 4, 2148),
        (2, 4, 100),
        (2, 6, 107),
        (0, 6, 2155),
        (-1, 7, 2155),
        (1, 4, 100),
        (0, 3, 2048),
    ],
)
def test_smaps_counts_the_mappings_that_lie_in_the_range(start, end, rss):
    origin = 0x7F0000000000
    assert sum_smaps(SMAPS, origin + start * MIB, origin + end * MIB)["Rss"] == rss * KIB


def test_smaps_fields():
    origin = 0x7F0000000000
    found = sum_smaps(SMAPS, origin, origin + 4 * MIB)
    assert (found["Swap"], found["KernelPageSize"]) == (8 * KIB, 64 * KIB)
    assert (resident_bytes(found), huge_bytes(found)) == ((2148 + 12) * KIB, (2048 + 12) * KIB)


@pytest.mark.parametrize("text", ["", "\n", "garbage: 12 kB\n", SMAPS])
def test_smaps_without_the_range_says_nothing(text):
    assert sum_smaps(text, 0x1000, 0x2000) is None


# --- folios ----------------------------------------------------------------------------------------------

HEAD, TAIL = 1 << 15, 1 << 16


def folios(*runs, base=4096):
    """Sizes by runs of (first virtual page, first frame, pages of a folio or 1 for a page of its own)."""
    virtual = np.concatenate([np.arange(page, page + n) for page, _, n in runs])
    frames = np.concatenate([np.arange(frame, frame + n) for _, frame, n in runs])
    flags = [0 if n == 1 else HEAD if i == 0 else TAIL for *_, n in runs for i in range(n)]
    return folio_sizes(virtual, frames, np.array(flags, np.uint64), base)


@pytest.mark.parametrize("base", [4 * KIB, 16 * KIB, 64 * KIB])
@pytest.mark.parametrize("pages_each", [2, 4, 16, 512, 8192])
def test_a_head_and_its_tails_are_one_folio(base, pages_each):
    sizes = folios((0, 0, pages_each), (pages_each, 4 * pages_each, pages_each), base=base)
    assert folio_shares(sizes) == {base * pages_each: 1.0}


def test_adjacent_folios_stay_apart():
    assert folio_shares(folios((0, 32, 16), (16, 48, 16))) == {64 * KIB: 1.0}


def test_adjacent_base_pages_are_no_folio():
    assert folio_shares(folios(*((i, 64 + i, 1) for i in range(16)))) == {4096: 1.0}


@pytest.mark.parametrize("run", [(1, 16, 16), (0, 17, 16), (0, 0, 12)], ids=["virtual", "physical", "odd"])
def test_folios_that_no_processor_translates_at_once_count_as_base(run):
    assert folio_shares(folios(run)) == {4096: 1.0}


def test_a_folio_without_its_head_counts_as_base():
    flags = np.array([TAIL] * 16, np.uint64)
    assert set(folio_sizes(np.arange(16), np.arange(16), flags, 4096)) == {4096}


def test_a_folio_mapped_with_a_gap_counts_as_base():
    flags = np.array([HEAD] + [TAIL] * 15, np.uint64)
    virtual = np.array([*range(5), *range(6, 17)])
    assert set(folio_sizes(virtual, np.arange(16), flags, 4096)) == {4096}


def test_absent_pages_have_no_share():
    assert folio_shares(np.array([4096, 0, 4096, 0])) == {4096: 0.5}
    assert folio_shares(np.zeros(4, np.int64)) == {}


@given(st.lists(st.sampled_from([1, 2, 4, 8, 16, 512]), min_size=1, max_size=40))
def test_shares_of_any_folios_are_exact(counts):
    runs, at = [], 0
    for count in counts:
        at = -(-at // 512) * 512
        runs.append((at, at + 512 * 7, count))
        at += count
    shares = folio_shares(folios(*runs))
    total = sum(counts)
    assert shares == {n * 4096: counts.count(n) * n / total for n in sorted(set(counts))}


def test_huge_folios_that_are_not_mapped_as_such_count_as_base():
    found = judge_folios(THP_POLICY, scan(4 * MIB, huge=2 * MIB), {2 * MIB: 1.0}, 2 * MIB, 4096)
    assert found.shares == {4096: 0.5, 2 * MIB: 0.5}
    assert found.page_size is None
    assert judge_folios(THP_POLICY, scan(4 * MIB), {2 * MIB: 1.0}, 2 * MIB, 4096).page_size == 4096


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_shares_that_differ_by_rounding_alone_are_the_same(huge, small):
    size = (huge + small) * 2 * MIB
    share = huge / (huge + small)
    found = judge_folios(
        ANY_POLICY, scan(size, huge=huge * 2 * MIB), {2 * MIB: share, 65536: 1 - share}, 2 * MIB, 4096
    )
    assert list(found.shares) == [65536, 2 * MIB]
    assert found.proof == "proved"


def test_folios_prove_sizes_below_the_pmd():
    found = judge_folios(ANY_POLICY, scan(4 * MIB), {64 * KIB: 1.0}, 2 * MIB, 4096)
    assert (found.page_size, found.proof) == (64 * KIB, "proved")


@pytest.mark.parametrize(
    ("seen", "shares"),
    [
        (None, {65536: 1.0}),
        (scan(4 * MIB, present=3 * MIB), {65536: 0.75}),
        (scan(4 * MIB), {65536: 0.75}),
        (scan(4 * MIB, huge=4 * MIB), {65536: 1.0}),
        (scan(4 * MIB, zero=4096), {65536: 1.0}),
    ],
)
def test_folios_prove_nothing_where_the_page_table_disagrees(seen, shares):
    found = judge_folios(ANY_POLICY, seen, shares, 2 * MIB, 4096)
    assert (found.proof, found.page_size) == ("unknown", None)


# --- backings and errors ---------------------------------------------------------------------------------


def test_backing_survives_a_file():
    found = Backing("default", None, {4096: 0.25, 2 * MIB: 0.75}, "proved", "PAGEMAP_SCAN", "a note")
    assert Backing.from_dict(found.to_dict()) == found
    assert all(isinstance(name, str) for name in found.to_dict()["shares"])


def test_backing_errors_reach_another_process():
    found = Backing("thp", 4096, {4096: 1.0}, "proved", "PAGEMAP_SCAN")
    error = pickle.loads(pickle.dumps(tp.BackingError("not so", "thp", found)))
    assert (str(error), error.asked, error.found) == ("not so", "thp", found)


# --- this machine's pages --------------------------------------------------------------------------------


@PRESENT_THP
@pytest.mark.parametrize("mode", ["always", "madvise"])
def test_forced_thp_is_proved(setting, mode):
    setting(f"/{THP}/enabled", mode)
    for name, size in (("base", BASE), ("thp", PMD), ("collapse", PMD)):
        with tp.Region(4 * PMD, name) as region:
            assert (region.backing().page_size, region.backing().proof) == (size, "proved")
    with tp.Region(4 * PMD, "default") as region:
        assert region.backing().page_size == (PMD if mode == "always" else BASE)


@PRESENT_THP
def test_thp_that_is_switched_off_is_refused_before_mapping(setting, monkeypatch):
    setting(f"/{THP}/enabled", "never")
    monkeypatch.setattr(tp.Region, "_map", lambda *_: pytest.fail("mapped"))
    with pytest.raises(tp.BackingError, match=f"echo madvise | sudo tee /{THP}/enabled") as refused:
        tp.Region(PMD, "thp")
    assert (refused.value.asked, refused.value.found) == ("thp", None)


@PRESENT_THP
def test_not_strict_warns_and_labels_by_what_was_found(setting):
    setting(f"/{THP}/enabled", "never")
    with pytest.warns(RuntimeWarning, match="pages='thp' was asked, but found were"):
        region = tp.Region(2 * PMD, "thp", strict=False)
    with region, pytest.warns(RuntimeWarning, match="found were"):
        assert (region.check_backing().page_size, region.backing().asked) == (BASE, "thp")


@PRESENT_THP
def test_collapse_works_whatever_the_mode(setting):
    setting(f"/{THP}/enabled", "never")
    with tp.Region(2 * PMD, "collapse") as region:
        assert region.backing().page_size == PMD


def mthp_sizes():
    return [size for size in paging.mthp_modes() if BASE < size < (PMD or 0)]


@pytest.fixture
def mthp(setting):
    """Switch sizes of transparent huge pages."""

    def switch(modes):
        for size, mode in modes.items():
            setting(f"/{THP}/hugepages-{size >> 10}kB/enabled", mode)

    return switch


def proved_by_folios(region):
    try:
        found = region.backing(folios=True)
    except PermissionError as error:
        pytest.skip(f"needs root: {error}")
    assert found.proof == "proved"
    return found.page_size


@COUNTS_FAULTS
@pytest.mark.parametrize("together", [False, True], ids=["alone", "among all sizes"])
@pytest.mark.parametrize("size", mthp_sizes(), ids=page_suffix)
def test_exactly_the_mthp_size_that_was_asked(mthp, size, together):
    mthp(dict.fromkeys(mthp_sizes() if together else [size], "madvise"))
    name = f"thp-{page_suffix(size)}"
    for wanted in (1, size, 2 * size, PMD + size):
        with tp.Region(wanted, name) as region:
            assert region.faults == region.mapped_bytes // size
            assert (region.backing().page_size, region.backing().proof) == (size, "consistent")
            assert proved_by_folios(region) == size
            assert region.address % size == 0


@COUNTS_FAULTS
def test_mthp_size_stays_exact_where_every_size_is_always_on(setting, mthp):
    sizes = mthp_sizes()
    if not sizes:
        pytest.skip("this kernel has no mTHP sizes")
    setting(f"/{THP}/enabled", "always")
    mthp(dict.fromkeys(sizes, "always"))
    for size in sizes[:2]:
        with tp.Region(3 * PMD, f"thp-{page_suffix(size)}") as region:
            assert proved_by_folios(region) == size
    with tp.Region(3 * PMD, "thp") as region:
        assert (region.backing().page_size, region.backing().proof) == (PMD, "proved")
    with tp.Region(3 * PMD, "base") as region:
        assert (region.backing().page_size, region.backing().proof) == (BASE, "proved")
        assert proved_by_folios(region) == BASE


@COUNTS_FAULTS
def test_default_pages_are_only_consistent_where_mthp_is_always_on(mthp):
    sizes = mthp_sizes()
    if not sizes:
        pytest.skip("this kernel has no mTHP sizes")
    mthp({sizes[1]: "always"})
    with tp.Region(16 * sizes[1], "default") as region:
        assert (region.backing().page_size, region.backing().proof) == (sizes[1], "consistent")
        assert proved_by_folios(region) == sizes[1]


@COUNTS_FAULTS
def test_a_rest_below_a_huge_page_is_counted_for_itself(setting, mthp):
    sizes = mthp_sizes()
    if not sizes:
        pytest.skip("this kernel has no mTHP sizes")
    setting(f"/{THP}/enabled", "always")
    mthp({sizes[1]: "always"})
    with tp.Region(PMD + 2 * sizes[1], "default") as region:
        found = region.backing()
        assert (set(found.shares), found.proof) == ({PMD, sizes[1]}, "consistent")
        assert region.backing(PMD).page_size == PMD
        assert region.backing(PMD).proof == "proved"


@COUNTS_FAULTS
def test_refused_advice_does_not_make_base_pages_of_what_is_none(mthp, run_python):
    """Under 'always' the pages are larger where MADV_NOHUGEPAGE is refused: never 'base pages, proved'."""
    sizes = mthp_sizes()
    if not sizes:
        pytest.skip("this kernel has no mTHP sizes")
    mthp({sizes[1]: "always"})
    found = run_python(
        f"""
        refuse(MADVISE, errno.EPERM)
        warnings.simplefilter("ignore")
        found = tp.Region(16 * {sizes[1]}, "base", strict=False).backing()
        answer([found.page_size, found.proof])
        """
    )
    assert found == [sizes[1], "consistent"]


@PRESENT_THP
@pytest.mark.parametrize("part", [1, BASE + 1, 64 * KIB, (PMD or 0) // 2, PMD])
def test_a_part_of_a_huge_page_is_a_huge_page(part):
    with tp.Region(2 * PMD, "thp") as region:
        assert region.backing(part).page_size == PMD
        assert proved_by_folios(region) == PMD
        assert region.backing(part, folios=True).page_size == PMD


@pytest.mark.parametrize("exempt", [0, 1], ids=["all", "all but advised"])
def test_prctl_is_found_out(run_python, exempt):
    found = run_python(
        f"""
        flags = {2 * exempt}
        if PMD is None or ctypes.CDLL(None).prctl(41, 1, flags, 0, 0):
            answer(None)
        else:
            thp = caught(tp.Region, PMD, "thp"), caught(tp.Region, PMD, "collapse")
            answer([thp, tp.Region(PMD, "default").backing().page_size == BASE])
        """
    )
    if found is None:
        pytest.skip("this kernel does not know the flag")
    refusals, default_is_base = found
    assert default_is_base
    for refused in refusals:
        assert refused is None if exempt else (refused[0] == "BackingError" and "prctl" in refused[1])


def test_prctl_without_strict_is_labelled(run_python):
    found = run_python(
        """
        done = PMD and ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0
        warnings.simplefilter("always")
        result = []
        for name in ("thp", "collapse") if done else ():
            with warnings.catch_warnings(record=True) as seen:
                region = tp.Region(PMD, name, strict=False)
            result.append([region.backing().page_size == BASE, [str(w.message) for w in seen]])
        answer(result)
        """
    )
    for is_base, messages in found:
        assert is_base
        assert any("found were" in message for message in messages)
    if not found:
        pytest.skip("no transparent huge pages, or no prctl")


# --- proofs that fail later ------------------------------------------------------------------------------

BEHIND = """
libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def advise(region, offset, size, advice):
    assert libc.madvise(region.address + offset, size, advice) == 0, os.strerror(ctypes.get_errno())
"""


@PRESENT_THP
def test_pages_collapsed_behind_the_back_are_found_out(run_python):
    found = run_python(
        BEHIND
        + """
default, base = tp.Region(2 * PMD, "default"), tp.Region(2 * PMD, "base")
for region in (default, base):
    advise(region, 0, 2 * PMD, 14)
    advise(region, 0, PMD, 25)
answer([default.check_backing().shares == {BASE: 0.5, PMD: 0.5}, caught(base.check_backing)])
"""
    )
    assert found[0], "'default' takes what comes, and says what it is"
    assert found[1][0] == "BackingError"
    assert "50.0% 2 MiB" in found[1][1] or PMD != 2 * MIB


@pytest.mark.parametrize("name", ["base", "default", pytest.param("thp", marks=PRESENT_THP)])
def test_a_page_that_went_away_is_found_out(run_python, name):
    found = run_python(
        BEHIND
        + f"""
region = tp.Region(4 * (PMD or MIB), {name!r})
advise(region, BASE, BASE, mmap.MADV_DONTNEED)
before = caught(region.check_backing, BASE)
answer([before, caught(region.check_backing), caught(tp.chase, region, max_seconds=0.05)])
"""
    )
    assert found[1][0] == "BackingError"
    assert "not in memory" in found[1][1]
    if name == "thp":
        assert found[0][0] == "BackingError", "its huge page was split"
    else:
        assert found[0] is None, "the page before it is as it was"


def test_a_zero_page_is_no_proof(run_python):
    found = run_python(
        BEHIND
        + """
region = tp.Region(64 * BASE, "base")
advise(region, 0, BASE, mmap.MADV_DONTNEED)
ctypes.string_at(region.address, 1)
seen = region.scan(0, 64 * BASE)
answer([seen["zero"] // BASE, caught(region.check_backing)])
"""
    )
    if found[0] == 0:
        assert found[1] is None
        pytest.skip("this kernel has no zero page")
    assert "zero page" in found[1][1]


# --- calls that a filter refuses -------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", ["EPERM", "ENOTTY", "ENOSYS", "EINVAL"])
def test_without_pagemap_scan_smaps_proves(run_python, refusal):
    names = [policy.name for policy in tp.page_policies() if policy.offered and policy.kind != "mthp"]
    found = run_python(
        f"""
        refuse(IOCTL, errno.{refusal}, 1, PAGEMAP_SCAN)
        result = {{}}
        for name in {names}:
            with tp.Region(2 * (PMD or MIB), name) as region:
                wanted = region.policy.page_size or region.backing().page_size
                parts = [region.backing(size) for size in (BASE, PMD or MIB, 2 * (PMD or MIB))]
                result[name] = [[b.method, b.proof, b.page_size == wanted] for b in parts]
        answer(result)
        """
    )
    for name, backings in found.items():
        assert backings == [["smaps", "proved", True]] * 3, name


def test_smaps_finds_missing_pages_too(run_python):
    found = run_python(
        BEHIND
        + """
refuse(IOCTL, errno.EPERM, 1, PAGEMAP_SCAN)
region = tp.Region(64 * BASE, "base")
advise(region, 8 * BASE, BASE, mmap.MADV_DONTNEED)
answer(caught(region.check_backing))
"""
    )
    assert found[0] == "BackingError"
    assert "not in memory" in found[1]


def test_smaps_does_not_guess_where_the_huge_pages_are(run_python):
    if PMD is None:
        pytest.skip("this kernel has no transparent huge pages")
    found = run_python(
        BEHIND
        + """
refuse(IOCTL, errno.EPERM, 1, PAGEMAP_SCAN)
region = tp.Region(2 * PMD, "default")
advise(region, 0, 2 * PMD, 14)
advise(region, 0, PMD, 25)
answer([region.backing(PMD).page_size, region.backing().page_size])
"""
    )
    assert found == [None, None]


def test_where_neither_can_be_read_nothing_is_proved(run_python):
    found = run_python(
        """
        refuse(IOCTL, errno.EPERM, 1, PAGEMAP_SCAN)
        real = Path.read_bytes
        def unreadable(path):
            if path.name == "smaps":
                raise PermissionError(errno.EACCES, "no")
            return real(path)
        Path.read_bytes = unreadable
        warnings.simplefilter("ignore")
        loose = tp.Region(MIB, "base", strict=False).backing()
        answer([caught(tp.Region, MIB, "base"), loose.proof, loose.page_size, loose.note])
        """
    )
    assert found[0][0] == "BackingError"
    assert "neither PAGEMAP_SCAN nor smaps" in found[0][1]
    assert found[1:3] == ["unknown", None]


@pytest.mark.parametrize("refusal", ["EPERM", "EACCES", "ENOSYS"])
def test_where_madvise_is_refused_default_still_works(run_python, refusal):
    found = run_python(
        f"""
        refuse(MADVISE, errno.{refusal})
        names = ["base", *(["thp", "collapse"] if PMD else [])]
        refusals = {{name: caught(tp.Region, MIB, name) for name in names}}
        with tp.Region(MIB, "default") as region:
            size = region.backing().page_size
        answer([refusals, size, errno.{refusal}])
        """
    )
    refusals, size, number = found
    assert size
    for name, (kind, text, code) in refusals.items():
        assert kind in ("OSError", "PermissionError")
        assert code == number
        assert f"pages='{name}'" in text
        assert ("MADV_COLLAPSE" if name == "collapse" else "pages='default'") in text


def test_where_madvise_is_refused_and_it_need_not_be_strict_the_proof_decides(run_python):
    found = run_python(
        """
        refuse(MADVISE, errno.EPERM)
        result = []
        for name in ["base", *(["thp", "collapse"] if PMD else [])]:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                with tp.Region(MIB, name, strict=False) as region:
                    result.append([region.backing().proof, [str(w.message) for w in seen]])
        answer(result)
        """
    )
    for proof, messages in found:
        assert proof in ("proved", "consistent")
        assert any("MADV_" in message for message in messages)
