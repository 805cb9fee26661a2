"""Host facts, hazards and CPUID decoding, on recorded and constructed machines."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trees import write

from tlbprobe.machine import cpuid, facts, files, hazards, limits, paging
from tlbprobe.record import RECORDS

MACHINES = Path(__file__).parent / "machines"
WHOLE = ("zen4-guest", "intel-bare", "amd-bare", "arm-64k", "container")
ALL = (*WHOLE, "cgroup-v1", "cgroup-v2")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


# --- unfolding a machine ---------------------------------------------------------------------------------


def sections(name):
    """Text by section of one machine file."""
    parts = re.split(r"^== (.+) ==$", (MACHINES / f"{name}.txt").read_text(), flags=re.MULTILINE)
    return {title: body.lstrip("\n") for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def pairs(body):
    return {name: text for name, _, text in (line.partition(" =") for line in body.splitlines() if line)}


def leaves(body):
    """CPUID dump of 'LEAF SUBLEAF: EAX EBX ECX EDX' lines."""
    rows = (re.findall(r"[0-9a-f]+", line) for line in body.splitlines() if line)
    return {(int(row[0], 16), int(row[1], 16)): tuple(int(r, 16) for r in row[2:]) for row in rows}


def process_of(name):
    found = sections(name)
    answers = {key: int(text) for key, text in pairs(found.get("process", "")).items()}
    return facts.Process(**answers, cpuid=leaves(found.get("cpuid", "")))


def unfold(name, root):
    for title, body in sections(name).items():
        if title.endswith("/"):
            for file, text in pairs(body).items():
                write(root, {title + file.strip(): text.removeprefix(" ") + "\n"})
        elif title not in ("process", "cpuid"):
            write(root, {title: body})
    for top in ("proc/self", "sys/kernel"):
        (root / top).mkdir(parents=True, exist_ok=True)
    return root


@pytest.fixture
def machine_tree(tmp_path):
    """Unfold a machine by name; returns its root."""
    return lambda name: unfold(name, tmp_path / name)


@pytest.fixture
def host_of(machine_tree):
    return lambda name: facts.host(machine_tree(name), process_of(name))


# --- low-level readers -----------------------------------------------------------------------------------


def test_live_readers_agree_with_the_system():
    assert paging.base_page_size() == os.sysconf("SC_PAGESIZE")
    assert paging.cache_line_size() in (32, 64, 128, 256)
    assert paging.thp_disabled() in (0, 1, 3, None)
    left = limits.address_space_limit()
    assert left is None or left > 0
    available = limits.memory_available()
    assert available is None or 0 < available < 1 << 60


@pytest.mark.parametrize("name", ["zen4-guest", "amd-bare", "arm-64k"])
def test_page_readers(machine_tree, name):
    root = machine_tree(name)
    pmd = {"arm-64k": 512 * MIB}.get(name, 2 * MIB)
    assert paging.pmd_size(root) == pmd
    assert paging.thp_mode(root) == "madvise"
    assert paging.mthp_modes(root)[pmd] == "inherit"
    assert paging.default_hugetlb_size(root) == 2 * MIB
    assert limits.max_map_count(root) in (65530, 1048576)
    assert paging.cache_line_size(root) == 64


def test_shmem_only_sizes_are_no_policy(machine_tree):
    assert paging.mthp_modes(machine_tree("amd-bare")) == {64 * KIB: "always", 2 * MIB: "inherit"}


def test_hugetlb_pools(machine_tree):
    pools = paging.hugetlb_pools(machine_tree("amd-bare"))
    assert pools[GIB] == paging.HugetlbPool(GIB, total=8, free=6, reserved=1, surplus=0, overcommit=0)
    assert pools[GIB].available == 5
    assert list(paging.hugetlb_pools(machine_tree("arm-64k"))) == [2 * MIB, 512 * MIB, 16 * GIB]


def test_a_pool_that_cannot_be_read_whole_is_left_out(machine_tree):
    root = machine_tree("amd-bare")
    (root / paging.HUGETLB / "hugepages-2048kB" / "resv_hugepages").write_text("-1\n")
    assert list(paging.hugetlb_pools(root)) == [GIB]


def test_free_blocks_and_vmstat(machine_tree):
    root = machine_tree("intel-bare")
    blocks = paging.free_blocks(root)
    assert blocks[1, "Normal"][-2:] == (300, 200)
    assert len(blocks) == 3
    assert files.vmstat(root)["thp_fault_fallback"] == 40


# --- memory limits ---------------------------------------------------------------------------------------


def limits_of(root):
    return {limit.source: limit for limit in limits.memory_limits(root)}


def test_nested_limits_of_cgroup_v1(machine_tree):
    found = limits_of(machine_tree("cgroup-v1"))
    assert set(found) == {
        "memory.limit_in_bytes",
        "hugetlb.2MB.limit_in_bytes",
        "app/hugetlb.2MB.rsvd.limit_in_bytes",
    }
    memory = found["memory.limit_in_bytes"]
    assert (memory.kind, memory.page_size, memory.limit) == ("memory", None, 4 * GIB)
    assert memory.headroom == 4 * GIB - (3 * GIB - 3 * GIB // 2), "page cache gives way"
    reserved = found["app/hugetlb.2MB.rsvd.limit_in_bytes"]
    assert (reserved.kind, reserved.page_size, reserved.headroom) == ("hugetlb", 2 * MIB, 6 * MIB)


def test_nested_limits_of_cgroup_v2(machine_tree):
    found = limits_of(machine_tree("cgroup-v2"))
    assert {source: limit.headroom for source, limit in found.items()} == {
        "machine.slice/memory.max": 5 * GIB,
        "machine.slice/outer/memory.high": 512 * MIB,
        "machine.slice/outer/inner/memory.max": 16 * GIB,  # its usage is garbled
        "machine.slice/outer/hugetlb.2MB.max": 60 * MIB,
        "machine.slice/outer/hugetlb.2MB.rsvd.max": 32 * MIB,
    }


def test_no_limit_here(machine_tree):
    assert limits.memory_limits(machine_tree("zen4-guest")) == []
    assert limits.memory_limits(machine_tree("intel-bare")) == []


@pytest.mark.parametrize(
    ("mount_root", "path", "below"),
    [
        ("/", "/a/b", ("a", "b")),
        ("/", "/", ()),
        ("/docker/x", "/docker/x/y", ("y",)),
        ("/docker/x", "/elsewhere", None),
        ("/..", "/", None),  # mounted outside of our cgroup namespace: our name below it is unknown
        ("/..", "/../sibling", ("sibling",)),
        ("/", "/../sibling", None),
    ],
)
def test_place_of_a_group_below_its_mount(mount_root, path, below):
    assert limits._path_below(mount_root, path) == below


def test_a_group_that_cannot_be_placed_falls_back_to_the_mount(machine_tree):
    root = machine_tree("cgroup-v2")
    write(root, {"proc/self/cgroup": "0::/../other\n"})
    write(root, {"sys/fs/cgroup/memory.max": "1000\n"})
    assert [limit.source for limit in limits.memory_limits(root)] == ["memory.max"]


def test_cpu_quota(machine_tree):
    assert limits.cpu_quota(machine_tree("cgroup-v1")) == 0.5
    assert limits.cpu_quota(machine_tree("cgroup-v2")) == 2.5
    assert limits.cpu_quota(machine_tree("zen4-guest")) is None


# --- facts -----------------------------------------------------------------------------------------------

EXPECTED = {
    "zen4-guest": {
        "cpu.vendor": "AuthenticAMD",
        "cpu.microarchitecture": "Zen 4",
        "cpu.governor": None,
        "cpu.hybrid": False,
        "cache.L3": 32 * MIB,
        "cache.L3.shared_by": 2,
        "pages.base": 4 * KIB,
        "pages.pmd": 2 * MIB,
        "thp.enabled": "madvise",
        "thp.enabled.64KiB": "never",
        "memory.free_huge": 83.5,
        "paging.levels": 4,
        "paging.pcid": True,
        "damon.running": True,
        "virtualisation.guest": True,
        "virtualisation.signature": "KVMKVMKVM",
        "virtualisation.paging": None,
        "container.kind": "docker",
        "kernel.options": "mitigations=auto,no_guest_host,no_guest_guest nested_pvm=1",
        "load.stolen": 0.15,
        "perf.pmu": "none",
        "process.cap_perfmon": True,
        "limit.memory": None,
    },
    "intel-bare": {
        "cpu.microarchitecture": "Sapphire Rapids (Golden Cove)",
        "cpu.governor": "powersave",
        "cpu.boost": True,
        "cpu.smt_siblings": 2,
        "cpu.online": 128,
        "numa.nodes": 2,
        "paging.levels": 5,
        "paging.virtual_bits": 57,
        "virtualisation.guest": False,
        "virtualisation.signature": None,
        "virtualisation.paging": "native",
        "iommu.groups": 3,
        "iommu.mode": "DMA-FQ, identity",
        "kernel.options": "intel_iommu=on iommu=pt",
        "perf.pmu": "cpu",
        "perf.paranoid": 3,
        "swap.zswap": True,
        "mglru.enabled": "0x0007",
        "process.cap_sys_admin": False,
    },
    "amd-bare": {
        "cpu.microarchitecture": "Zen 5",
        "cpu.boost": False,
        "cpu.isolated": 8,
        "hugetlb.1GiB.free": 6,
        "hugetlb.2MiB.overcommit": 512,
        "perf.paranoid": -1,
        "perf.rdpmc": 2,
        "process.cap_perfmon": True,
        "kernel.options": "hugepagesz=1G hugepages=8 isolcpus=8-15 amd_iommu=on",
    },
    "arm-64k": {
        "cpu.vendor": "Arm",
        "cpu.implementer": 0x41,
        "cpu.model": 0xD0C,
        "cpu.stepping": "r3p1",
        "cpu.family": None,
        "cpu.microarchitecture": "Neoverse-N1",
        "pages.base": 64 * KIB,
        "pages.pmd": 512 * MIB,
        "thp.enabled.2MiB": "never",
        "hugetlb.16GiB.total": 0,
        "memory.free_huge": 80.1,
        "virtualisation.guest": None,
        "perf.pmu": "armv8_pmuv3_0",
        "paging.pcid": None,
    },
    "container": {
        "cpu.microarchitecture": "Cascade Lake",
        "container.kind": "docker",
        "process.seccomp": "filter",
        "process.no_new_privileges": True,
        "process.thp_disabled": 1,
        "limit.memory": 2 * GIB,
        "limit.memory_left": 2 * GIB - 1_900_000_000,
        "limit.cpu": 1.5,
        "load.stolen": 6.25,
    },
}


@pytest.mark.parametrize("name", WHOLE)
def test_facts(host_of, name):
    found = host_of(name)
    assert {fact: found[fact] for fact in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("name", ALL)
def test_every_fact_has_a_source_and_a_value_or_a_reason(host_of, name):
    for fact in host_of(name).facts:
        assert fact.source
        assert (fact.value is None) == (fact.reason is not None), fact
        assert fact.value is None or isinstance(fact.value, bool | int | float | str)


def test_live_host():
    here = facts.host()
    assert here["pages.base"] == os.sysconf("SC_PAGESIZE")
    assert len(here) == len(here.facts) == len(set(here))
    assert here["thp.enabled"] == paging.thp_mode()


def test_a_guest_cannot_know_its_paging(host_of):
    fact = host_of("zen4-guest").fact("virtualisation.paging")
    assert fact.unreadable
    assert "cannot be read" in fact.reason


def test_an_unknown_name_is_a_key_error(host_of):
    found = host_of("zen4-guest")
    assert found.get("no.such.fact") is None
    with pytest.raises(KeyError):
        found["no.such.fact"]


def test_host_is_frozen(host_of):
    with pytest.raises(AttributeError):
        host_of("zen4-guest").facts = ()


@pytest.mark.parametrize("name", ALL)
def test_json_round_trip(host_of, name):
    found = host_of(name)
    again = facts.Host.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found
    assert again.hazards == found.hazards


@pytest.mark.parametrize("record", [{}, {"facts": 1, "tlb": []}, {"facts": [{"nope": 1}], "tlb": []}])
def test_a_foreign_record_is_refused(record):
    with pytest.raises(ValueError, match="not a record of a host"):
        facts.Host.from_dict(record)


PRIVATE = ("UUID", "LABEL", "/dev/", "vg-root", ".slice", "0123", "service/worker", "cloudimg")


@pytest.mark.parametrize("name", ALL)
def test_nothing_private_is_recorded(host_of, name):
    """No host or user name, no path of disks, homes or control groups."""
    text = json.dumps(host_of(name).to_dict())
    for private in PRIVATE:
        assert private not in text


def test_the_host_name_is_not_recorded():
    assert os.uname().nodename not in {fact.value for fact in facts.host().facts}


@pytest.mark.parametrize("name", ALL)
def test_text_and_html(host_of, name):
    found = host_of(name)
    text = repr(found)
    assert text.count("\n") < 80
    assert all(hazard.what in text for hazard in found.hazards)
    assert found._repr_html_().count("<table>") == 2


def test_firmware_text_cannot_break_out(machine_tree):
    root = machine_tree("arm-64k")
    write(root, {"sys/class/dmi/id/product_name": "<script>alert(1)</script>\x1b[31m\n"})
    found = facts.host(root)
    assert "<script>" not in found._repr_html_()
    assert "\x1b" not in repr(found)


def test_what_is_not_offered_is_not_unreadable(host_of):
    found = host_of("cgroup-v1")  # a tree with next to nothing in it
    assert found.fact("thp.enabled").reason == facts.NOT_OFFERED
    assert not found.fact("thp.enabled").unreadable


# --- hazards ---------------------------------------------------------------------------------------------


def by_name(found):
    return {hazard.what: hazard for hazard in found.hazards}


HAZARDS = {
    "zen4-guest": {
        "access sampling (DAMON)": "medium",
        "khugepaged": "low",
        "varying clock": "unknown",
        "turbo": "unknown",
        "SMT sibling": "unknown",
    },
    "intel-bare": {
        "default pages are huge": "high",
        "fragmented memory": "high",
        "load": "high",
        "khugepaged": "medium",
        "NUMA balancing": "medium",
        "swap": "medium",
        "varying clock": "medium",
        "turbo": "medium",
        "SMT sibling": "medium",
        "page merging (KSM)": "low",
        "several NUMA nodes": "low",
        "NMI watchdog": "low",
    },
    "amd-bare": {"default pages are mTHP": "medium", "slow clock source": "medium"},
    "arm-64k": {"khugepaged": "low", "turbo": "unknown"},
    "container": {
        "advice is ignored": "high",
        "memory pressure": "medium",
        "stolen time": "medium",
        "CPU quota": "medium",
        "SMT sibling": "low",
        "fragmented memory": "unknown",
        "varying clock": "unknown",
        "turbo": "unknown",
        "khugepaged": "medium",
    },
}


@pytest.mark.parametrize("name", WHOLE)
def test_hazards(host_of, name):
    assert {what: hazard.severity for what, hazard in by_name(host_of(name)).items()} == HAZARDS[name]


@pytest.mark.parametrize("name", WHOLE)
def test_hazards_come_worst_first_and_name_real_probes(host_of, name):
    found = host_of(name)
    order = [hazards.SEVERITIES.index(hazard.severity) for hazard in found.hazards]
    assert order == sorted(order)
    for hazard in found.hazards:
        assert hazard.probes
        assert set(hazard.probes) <= set(RECORDS)
        assert hazard in found.hazards_for(hazard.probes[0])


def test_commands_are_exact(host_of):
    intel, amd, here = (by_name(host_of(name)) for name in ("intel-bare", "amd-bare", "zen4-guest"))
    thp = "/sys/kernel/mm/transparent_hugepage"
    assert intel["default pages are huge"].command == f"echo madvise | sudo tee {thp}/enabled"
    assert intel["turbo"].command == "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    assert intel["NUMA balancing"].command == "sudo sysctl kernel.numa_balancing=0"
    assert amd["default pages are mTHP"].command == f"echo madvise | sudo tee {thp}/hugepages-64kB/enabled"
    assert amd["slow clock source"].command.startswith("echo tsc | sudo tee /sys/devices/system/clocksource/")
    assert here["varying clock"].command is None


def test_commands_name_files_that_are_there(host_of, machine_tree):
    """Every file that a command writes is one that the facts were read from, or beside it."""
    for name in WHOLE:
        root, found = machine_tree(name), host_of(name)
        for path in re.findall(r" /(sys/\S+)", " ".join(hazard.command or "" for hazard in found.hazards)):
            assert list(root.glob(path)), path


def test_the_size_s_own_mode_wins(machine_tree):
    """A PMD-sized mode of its own overrides the one for all."""
    root = machine_tree("zen4-guest")
    own = f"{paging.THP}/hugepages-2048kB/enabled"
    write(root, {own: "[always] inherit madvise never\n"})
    hazard = by_name(facts.host(root, process_of("zen4-guest")))["default pages are huge"]
    assert hazard.command == f"echo madvise | sudo tee /{own}"


def test_advised_only_processes_have_no_huge_default(machine_tree):
    root = machine_tree("intel-bare")
    assert "default pages are huge" not in by_name(facts.host(root, facts.Process(thp_disabled=3)))


def test_what_cannot_be_read_is_an_unknown_hazard(machine_tree):
    root = machine_tree("intel-bare")
    file = root / paging.THP / "enabled"
    file.unlink()
    file.mkdir()  # reading a directory fails for root too
    hazard = by_name(facts.host(root, process_of("intel-bare")))["default pages are huge"]
    assert hazard.severity == "unknown"
    assert "is a directory" in hazard.effect


def test_a_kernel_without_the_feature_has_no_hazard(machine_tree):
    root = machine_tree("intel-bare")
    shutil.rmtree(root / paging.THP)
    (root / "sys/kernel/mm/ksm/run").unlink()
    found = by_name(facts.host(root, process_of("intel-bare")))
    assert not {"default pages are huge", "khugepaged", "page merging (KSM)"} & set(found)


def test_a_machine_that_shows_nothing_has_only_unknown_hazards(tmp_path):
    found = facts.host(tmp_path)
    assert {hazard.severity for hazard in found.hazards} == {"unknown"}
    assert "default pages are huge" in by_name(found)


def test_hybrid_cores(machine_tree):
    root = machine_tree("intel-bare")
    write(root, {"sys/devices/cpu_atom/cpus": "8-15\n"})
    assert "two kinds of core" in by_name(facts.host(root))
    big_little = machine_tree("arm-64k")
    write(big_little, {"sys/devices/system/cpu/cpu1/cpu_capacity": "446\n"})
    assert facts.host(big_little)["cpu.hybrid"] is True


def test_page_table_isolation_without_pcid(machine_tree):
    root = machine_tree("container")
    write(root, {"sys/devices/system/cpu/vulnerabilities/meltdown": "Mitigation: PTI\n"})
    assert by_name(facts.host(root))["page-table isolation"].severity == "low"
    info = root / "proc/cpuinfo"
    info.write_text(info.read_text().replace(" pcid ", " "))
    assert by_name(facts.host(root))["page-table isolation"].severity == "medium"


# --- broken trees ----------------------------------------------------------------------------------------


def spoil(file, how):
    file.unlink()
    if how == "loop":
        file.symlink_to(file.name)
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "directory":
        file.mkdir()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "endless":
        file.symlink_to("/dev/zero")
    elif how == "huge number":
        file.write_text("9" * 6000 + "\n")
    elif how == "negative":
        file.write_text("-5\n")


@pytest.mark.parametrize(
    "how", ["missing", "loop", "pipe", "directory", "empty", "endless", "huge number", "negative"]
)
def test_every_file_spoilt(machine_tree, how):
    root = machine_tree("intel-bare")
    files = [file for file in root.rglob("*") if file.is_file()]
    for file in files:
        spoil(file, how)
    found = facts.host(root)
    json.dumps(found.to_dict(), allow_nan=False)
    assert repr(found)
    assert limits.memory_limits(root) == []
    assert paging.hugetlb_pools(root) == {}
    assert paging.mthp_modes(root) == {}
    assert paging.pmd_size(root) is None
    assert paging.thp_mode(root) is None
    assert limits.memory_available(root) is None
    assert paging.default_hugetlb_size(root) is None


def test_no_root_at_all(tmp_path):
    found = facts.host(tmp_path / "nowhere")
    assert found["thp.enabled"] is None
    assert found.fact("thp.enabled").reason == "/sys is not mounted"
    assert found.fact("thp.enabled").unreadable


def test_unreadable_files(machine_tree):
    root = machine_tree("intel-bare")
    file = root / paging.THP / "enabled"
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("root reads everything")
    assert facts.host(root).fact("thp.enabled").reason == "permission denied"


ABSURD = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.from_regex(r"\A[-0-9 ,:/\[\]kKMGB.\n]{0,60}\Z").map(str.encode),
    st.integers().map(lambda number: str(number).encode()),
    st.sampled_from([b"max\n", b"nan", b"-inf", b"[]", b"0-", b"9-1", b"0::", b"0::/\\000", b" - cgroup2 x"]),
)


@pytest.fixture(scope="module")
def fuzzed_tree(tmp_path_factory):
    root = unfold("zen4-guest", tmp_path_factory.mktemp("fuzzed"))
    return root, {file: file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_host_never_raises(fuzzed_tree, data):
    root, files = fuzzed_tree
    spoilt = data.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=20, unique=True))
    try:
        for file in spoilt:
            cut = data.draw(st.integers(0, len(files[file])))
            file.write_bytes(files[file][:cut] + data.draw(ABSURD))
        found = facts.host(root)
        assert facts.Host.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
        assert repr(found)
        assert found._repr_html_()
        limits.memory_limits(root)
    finally:
        for file in spoilt:
            file.write_bytes(files[file])


# --- CPUID -----------------------------------------------------------------------------------------------


def claims(name):
    found = sections("cpuid-dumps").get(name) or sections(name)["cpuid"]
    return cpuid.tlb(leaves(found))


def entries(rows, level, page_size, side="data", access="any"):
    return [
        (row.entries, row.ways)
        for row in rows
        if (row.level, row.side, row.access) == (level, side, access) and page_size in row.page_sizes
    ]


def test_amd_claims():
    rows = claims("Zen 3 Milan")
    assert entries(rows, 1, 4 * KIB) == entries(rows, 1, 2 * MIB) == entries(rows, 1, GIB) == [(64, 64)]
    assert entries(rows, 2, 4 * KIB) == [(2048, 8)]
    assert entries(rows, 2, 4 * KIB, "instruction") == [(512, 4)]
    assert entries(rows, 2, 2 * MIB) == [(2048, 4)]
    assert entries(rows, 2, GIB) == [(64, 64)]
    assert all(row.reliable and row.candidate is None for row in rows)


@pytest.mark.parametrize("name", ["Zen 5 Granite Ridge", "amd-bare"])
def test_amd_counts_in_multiples_of_32_if_the_flag_says_so(name):
    rows = claims(name)
    assert entries(rows, 1, 4 * KIB) == [(96, 96)], "the first level is not scaled"
    assert entries(rows, 2, 4 * KIB) == [(4096, 8)]
    assert entries(rows, 2, 4 * KIB, "instruction") == [(2048, 4)]
    assert entries(rows, 2, GIB) == [(1024, 4)]
    assert all(row.reliable for row in rows)


def test_a_hypervisor_that_hides_the_flag_makes_the_claim_unreliable():
    rows = claims("Zen 5 guest")
    second = [row for row in rows if row.level == 2]
    assert entries(rows, 2, 4 * KIB) == [(128, 8)], "never multiplied silently"
    assert len(second) == 4
    assert all(not row.reliable and row.candidate == 32 * row.entries and row.note for row in second)
    assert all(row.reliable for row in rows if row.level == 1)
    assert cpuid.reach(rows, 4 * KIB) == {1: 96 * 4 * KIB}


def test_a_hypervisor_that_passes_the_flag_is_believed():
    rows = claims("Zen 5 guest, flag passed")
    assert entries(rows, 2, 4 * KIB) == [(4096, 8)]
    assert all(row.reliable for row in rows)


def test_older_amd_guests_are_believed():
    rows = claims("zen4-guest")
    assert entries(rows, 2, 4 * KIB) == [(3072, 8)]
    assert entries(rows, 2, 2 * MIB) == [(3072, 6)]
    assert entries(rows, 2, GIB) == [], "this hypervisor clears leaf 0x80000019"
    assert all(row.reliable for row in rows)


def test_a_shared_second_level_of_old_amd():
    dump = {(0, 0): (5, 0x68747541, 0x444D4163, 0x69746E65), (0x80000006, 0): (0, 0x00004200, 0, 0)}
    (row,) = cpuid.tlb(dump)
    assert (row.level, row.side, row.entries, row.ways) == (2, "unified", 512, 4)


def test_intel_leaf_18():
    rows = claims("intel-bare")
    assert entries(rows, 1, 4 * KIB, "instruction") == [(256, 8)]
    assert entries(rows, 1, 4 * KIB, access="load") == [(64, 4)]
    assert entries(rows, 1, 4 * KIB, access="store") == entries(rows, 1, GIB, access="store") == [(16, 16)]
    assert entries(rows, 2, 4 * KIB, "unified") == [(1024, 8), (1024, 8)], "two halves hold base pages"
    assert entries(rows, 2, 2 * MIB, "unified") == entries(rows, 2, GIB, "unified") == [(1024, 8)]
    assert cpuid.reach(rows, 4 * KIB) == {1: 64 * 4 * KIB, 2: 2048 * 4 * KIB}
    assert cpuid.reach(rows, 2 * MIB) == {1: 32 * 2 * MIB, 2: 1024 * 2 * MIB}


def test_hybrid_cores_differ():
    assert entries(claims("Lion Cove"), 1, 4 * KIB, access="load") == [(128, 8)]
    assert entries(claims("Skymont"), 1, 4 * KIB) == [(48, 48)]
    assert entries(claims("Skymont"), 2, 4 * KIB, "unified") == [(4096, 4)]
    dumps = sections("cpuid-dumps")
    assert cpuid.core_type(leaves(dumps["Lion Cove"])) == "performance"
    assert cpuid.core_type(leaves(dumps["Skymont"])) == "efficient"
    assert cpuid.core_type(leaves(dumps["Haswell"])) is None


def test_intel_descriptors():
    rows = claims("Haswell")
    assert entries(rows, 1, 4 * KIB) == [(64, 4)]
    assert entries(rows, 1, 2 * MIB) == [(32, 4)]
    assert entries(rows, 1, GIB) == [(4, 4)]
    assert entries(rows, 1, 4 * KIB, "instruction") == [(64, 8)]
    assert entries(rows, 2, 4 * KIB, "unified") == entries(rows, 2, 2 * MIB, "unified") == [(1024, 8)]
    assert entries(claims("Skylake-X"), 2, 4 * KIB, "unified") == [(1536, 6)]
    assert entries(claims("Skylake-X"), 2, GIB, "unified") == [(16, 4)]


def test_an_invalid_descriptor_register_is_skipped():
    intel = (0x2, 0x756E6547, 0x6C65746E, 0x49656E69)
    dump = {(0, 0): intel, (2, 0): (0x01, 0x800000C3, 0x00000003, 0)}
    assert [row.entries for row in cpuid.tlb(dump)] == [64]


def test_signatures():
    dumps = sections("cpuid-dumps")
    assert cpuid.hypervisor_signature(leaves(dumps["Zen 5 guest"])) == "bhyve bhyve "
    assert cpuid.hypervisor_signature(leaves(dumps["Zen 3 Milan"])) is None
    assert cpuid.vendor(leaves(dumps["Haswell"])) == "GenuineIntel"
    assert cpuid.family(leaves(dumps["Zen 5 guest"])) == 0x1A


def test_no_cpuid_claims_nothing(host_of):
    arm = host_of("arm-64k")
    assert arm.tlb == ()
    assert arm.tlb_reach(64 * KIB) == {}
    assert cpuid.tlb({}) == ()
    assert cpuid.vendor({}) is None


def test_only_offered_leaves_are_dumped():
    asked = []

    def read(leaf, subleaf):
        asked.append((leaf, subleaf))
        return {0: 0x18, 0x80000000: 0x80000006, 0x18: 2}.get(leaf, 0), 0, 0, 0

    dump = cpuid.dump(read)
    assert {(0x18, 0), (0x18, 1), (0x18, 2), (0x80000006, 0)} <= set(dump)
    assert not {(0x1A, 0), (0x80000019, 0), (0x18, 3)} & set(asked)
    assert cpuid.dump(lambda leaf, subleaf: None) == {}


def test_live_dump():
    dump = cpuid.dump_cpuid()
    assert all(len(registers) == 4 for registers in dump.values())


REGISTERS = st.tuples(*[st.integers(0, (1 << 32) - 1)] * 4)


LEAVES = st.sampled_from((0, 1, 2, 0x18, 0x80000005, 0x80000006, 0x80000019, 0x80000021))
DUMPS = st.dictionaries(st.tuples(LEAVES, st.integers(0, 9)), REGISTERS)


@given(DUMPS, st.sampled_from(["AuthenticAMD", "GenuineIntel", "HygonGenuine"]))
def test_decoders_take_any_registers(dump, vendor):
    letters = vendor.encode()
    ebx, edx, ecx = (int.from_bytes(letters[k : k + 4], "little") for k in (0, 4, 8))
    rows = cpuid.tlb({**dump, (0, 0): (0, ebx, ecx, edx)})
    for row in rows:
        assert row.entries > 0
        assert row.page_sizes
        assert row.reliable == (row.candidate is None)


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "name"),
    [
        ("GenuineIntel", 6, 0x3C, 3, "Haswell"),
        ("GenuineIntel", 6, 0x55, 4, "Skylake-X"),
        ("GenuineIntel", 6, 0x55, 7, "Cascade Lake"),
        ("GenuineIntel", 6, 0x55, 11, "Cooper Lake"),
        ("GenuineIntel", 6, 0x97, 2, "Alder Lake (hybrid: Golden Cove, Gracemont)"),
        ("GenuineIntel", 6, 0xAD, 1, "Granite Rapids (Redwood Cove)"),
        ("GenuineIntel", 0x12, 1, 0, "Nova Lake (hybrid: Coyote Cove, Arctic Wolf)"),
        ("AuthenticAMD", 0x17, 0x01, 1, "Zen 1"),
        ("AuthenticAMD", 0x17, 0x08, 2, "Zen+"),
        ("AuthenticAMD", 0x17, 0x31, 0, "Zen 2"),
        ("AuthenticAMD", 0x19, 0x01, 1, "Zen 3"),
        ("AuthenticAMD", 0x19, 0x11, 1, "Zen 4"),
        ("AuthenticAMD", 0x1A, 0x44, 0, "Zen 5"),
        ("AuthenticAMD", 0x1A, 0x50, 0, "Zen 6"),
        ("AuthenticAMD", 0x15, 2, 0, None),
        ("GenuineIntel", 6, 0xFF, 0, None),
        ("CentaurHauls", 6, 1, 0, None),
    ],
)
def test_microarchitectures(vendor, family, model, stepping, name):
    assert cpuid.microarchitecture(vendor, family, model, stepping) == name
