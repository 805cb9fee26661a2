"""What a size needs of each kind of page, and which mappings of a program are huge: on made-up trees."""

import json
import mmap
import os
import subprocess
import sys

import pytest
from trees import pool_files, write

import tlbprobe as tp
from tlbprobe.display.commands.main import main
from tlbprobe.display.commands.pages import print_mappings
from tlbprobe.machine import paging
from tlbprobe.memory.needs import page_needs
from tlbprobe.programs import mappings

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
THP, HUGETLB = "sys/kernel/mm/transparent_hugepage", "sys/kernel/mm/hugepages"
BASE = paging.base_page_size()
PMD = 2 * MIB


@pytest.fixture
def tree(tmp_path):
    """32 GiB, two nodes, 2 MiB and 1 GiB pools, blocks of at most 1024 base pages."""
    blocks = "Node {0}, zone Normal " + " ".join(["100"] * 11) + "\n"
    files = {
        "proc/meminfo": f"MemAvailable: {32 * MIB} kB\nHugepagesize: 2048 kB\n",
        "proc/buddyinfo": blocks.format(0) + blocks.format(1),
        f"{THP}/enabled": "always madvise [never]\n",
        f"{THP}/hpage_pmd_size": f"{PMD}\n",
        f"{THP}/shmem_enabled": "always within_size advise [never] deny force\n",
        f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]\n",
        f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never\n",
        **pool_files(2 * MIB, 100, 60, 10),
        **pool_files(GIB, 0, 0),
    }
    for node, free in ((0, 40), (1, 20)):
        files[f"sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages"] = f"{free}\n"
    return write(tmp_path, files)


def needs(size, root):
    return {need.policy.name: need for need in page_needs(size, root)}


def test_eight_gib_as_the_article_counts(tree):
    found = needs("8GiB", tree)
    assert found["hugetlb"].pages == 4096
    assert found["hugetlb-1G"].pages == 8
    assert found["base"].pages == 8 * GIB // BASE


def test_pages_are_whole(tree):
    need = needs(GIB + 1, tree)["hugetlb-1G"]
    assert (need.pages, need.unused_bytes) == (2, GIB - 1)


@pytest.mark.skipif(BASE != 4096, reason="the tree has blocks of 4 KiB pages")
def test_what_there_is_and_could_be_had(tree):
    found = needs("1GiB", tree)
    assert found["hugetlb"].reserved == 50  # free and not spoken for
    assert found["hugetlb"].obtainable == 2 * (100 + 2 * 100)  # blocks of 512 and of 1024 pages
    assert found["hugetlb"].by_node == {0: (40, 300), 1: (20, 300)}
    assert found["thp"].obtainable == 600
    assert found["base"].obtainable == 32 * GIB // BASE
    assert found["hugetlb-1G"].obtainable is None  # no list of blocks so large
    assert found["hugetlb-1G"].enough is None
    assert found["hugetlb"].enough is True
    assert found["thp"].enough is True
    assert needs("2GiB", tree)["thp"].enough is False


def test_memory_left_over(tree):
    found = needs("8GiB", tree)
    assert found["base"].left_bytes == 24 * GIB
    assert found["hugetlb"].left_bytes == 24 * GIB + 50 * PMD  # what is reserved is taken already
    assert needs("64GiB", tree)["base"].left_bytes == -32 * GIB
    assert needs("64GiB", tree)["base"].enough is False


def test_commands(tree):
    found = needs("8GiB", tree)
    assert (
        found["hugetlb"].now == f"echo {100 + 4096 - 50} | sudo tee /{HUGETLB}/hugepages-2048kB/nr_hugepages"
    )
    assert found["hugetlb"].at_boot == "hugepagesz=2M hugepages=4146"  # those in use stay in use
    assert found["hugetlb-1G"].at_boot == "hugepagesz=1G hugepages=8"
    assert found["thp-64K"].now.endswith(f"tee /{THP}/hugepages-64kB/enabled")
    assert found["thp-64K"].at_boot == "thp_anon=64K:madvise"
    assert found["thp"].now.endswith(f"tee /{THP}/enabled")
    assert found["base"].now == found["base"].at_boot == ""
    assert needs("4MiB", tree)["hugetlb"].now == needs("4MiB", tree)["hugetlb"].at_boot == ""
    assert needs("1TiB", tree)["hugetlb"].now == ""  # it would take more memory than there is


def test_an_empty_tree_is_unknown_and_not_zero(tmp_path):
    (need,) = page_needs("1GiB", tmp_path)
    assert (need.policy.name, need.reserved, need.obtainable, need.left_bytes) == ("base", None, None, None)
    assert need.enough is None


# --- programs --------------------------------------------------------------------------------------------


def entry(start, size, flags="rd wr mr mw me ac", inode=0, name="", **fields):
    known = {"Rss": size, "AnonHugePages": 0, "KernelPageSize": 4 * KIB, **fields}
    lines = [f"{start:x}-{start + size:x} rw-p 00000000 00:00 {inode}                  {name}".rstrip()]
    lines += [f"{key}:   {value >> 10} kB" for key, value in known.items()]
    return "\n".join([*lines, f"VmFlags: {flags}", ""])


@pytest.fixture
def program(tree):
    def build(*entries, mode="madvise", status="THP_enabled:\t1\n"):
        write(tree, {
            f"{THP}/enabled": "always madvise never".replace(mode, f"[{mode}]"),
            "proc/7/smaps": "".join(entries),
            "proc/7/status": status,
        })  # fmt: skip
        return mappings.program_mappings(7, tree)

    return build


AT = 16 * GIB


@pytest.mark.parametrize(
    ("why", "one", "mode"),
    [
        ("", entry(AT, 4 * MIB, AnonHugePages=4 * MIB), "madvise"),
        ("", entry(AT, 4 * MIB, "rd wr ht", Rss=0, Private_Hugetlb=4 * MIB, KernelPageSize=2 * MIB), "never"),
        ("too small", entry(AT, MIB), "always"),
        ("unaligned", entry(AT + MIB, 2 * MIB), "always"),
        ("not advised", entry(AT, 4 * MIB), "madvise"),
        ("disabled by the program", entry(AT, 4 * MIB, "rd wr nh"), "always"),
        ("'never'", entry(AT, 4 * MIB, "rd wr hg"), "never"),
        ("file", entry(AT, 4 * MIB, inode=42, name="/usr/lib/libc.so.6"), "always"),
        ("touched before", entry(AT, 4 * MIB, "rd wr hg"), "madvise"),
        ("was mapped when huge pages were short", entry(AT, 4 * MIB), "always"),
        ("partly", entry(AT, 4 * MIB, AnonHugePages=2 * MIB), "always"),
        ("all but the ends", entry(AT + MIB, 4 * MIB, AnonHugePages=2 * MIB), "always"),
        ("shmem_enabled is 'never'", entry(AT, 4 * MIB, inode=3, name="/memfd:x (deleted)"), "always"),
    ],
)
def test_why_a_mapping_is_not_huge(program, why, one, mode):
    (found,) = program(one, mode=mode)
    assert why in found.reason
    assert bool(found.reason) == bool(why)
    assert found.start in (AT, AT + MIB)


def test_the_setting_of_the_size_itself_is_named(program, tree):
    write(tree, {f"{THP}/hugepages-2048kB/enabled": "always inherit madvise [never]\n"})
    (found,) = program(entry(AT, 4 * MIB), mode="always")
    assert f"/{THP}/hugepages-2048kB/enabled is 'never'" in found.reason


def test_advice_helps_shared_memory_where_the_setting_says_so(program, tree):
    write(tree, {f"{THP}/shmem_enabled": "always within_size [advise] never deny force\n"})
    (found,) = program(entry(AT, 4 * MIB, inode=3, name="/dev/zero (deleted)"), mode="never")
    assert found.reason == "not advised (MADV_HUGEPAGE)"


def test_a_name_of_a_file_forges_nothing(program, capsys):
    forged = f"/tmp/y\r{AT:x}-{AT + GIB:x} rw-p 00000000 00:00 0 forged\x1b[2J"
    (found,) = program(entry(3 * AT, 4 * MIB, inode=9, name=forged))
    assert (found.start, found.resident) == (3 * AT, 4 * MIB)
    print_mappings([found])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\r" not in out


def test_forbidden_by_prctl(program):
    (found,) = program(entry(AT, 4 * MIB, "rd wr hg"), status="THP_enabled:\t0\n")
    assert "prctl" in found.reason


def test_largest_first_and_nothing_that_is_not_there(program):
    found = program(
        entry(AT, MIB), entry(2 * AT, 8 * MIB, Rss=0), entry(3 * AT, 4 * MIB, AnonHugePages=4 * MIB)
    )
    assert [one.resident for one in found] == [4 * MIB, MIB]
    assert mappings.whole_program(found) == "4 MiB of 5 MiB resident are on huge pages (80%)"


def test_a_program_that_ends_while_it_is_read(program):
    cut = entry(AT, MIB) + entry(2 * AT, 4 * MIB).partition("VmFlags")[0]
    assert [one.resident for one in program(cut)] == [MIB]
    with pytest.raises(ProcessLookupError, match="pid=7"):
        program("")


def test_no_such_program(tree):
    with pytest.raises(ProcessLookupError, match="pid=12345"):
        mappings.program_mappings(12345, tree)


@pytest.mark.parametrize("pid", [0, -1, True, 1.5, "7"])
def test_a_wrong_pid(pid):
    with pytest.raises(ValueError if pid in (0, -1) else TypeError, match="pid="):
        mappings.program_mappings(pid)


def test_our_own_program():
    with mmap.mmap(-1, 8 * MIB) as memory:
        memory.write(b"x" * 8 * MIB)
        found = tp.program_mappings(os.getpid())
    assert max(one.resident for one in found) >= 8 * MIB
    assert all(0 <= one.huge <= one.resident <= one.size for one in found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start somebody else's program")
def test_somebody_elses_program():
    script = "import os, tlbprobe as tp; os.setuid(65534); tp.program_mappings(1)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "PermissionError" in done.stderr


# --- the command -----------------------------------------------------------------------------------------


def test_command(capsys):
    assert main(["pages", "8GiB"]) == 0
    assert "needed" in capsys.readouterr().out
    assert main(["pages", "8GiB", "--json"]) == 0
    assert {need["page_size"] for need in json.loads(capsys.readouterr().out)} >= {BASE}
    assert main(["pages"]) == 0
    assert "base: offered" in capsys.readouterr().out
    assert main(["pages", "--pid", str(os.getpid())]) == 0
    assert "resident are on huge pages" in capsys.readouterr().out
    assert main(["pages", "--pid", str(os.getpid()), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["pages", "8GB"], 2, "ambiguous"),
        (["pages", "0"], 2, "out of range"),
        (["pages", "--pid", "0"], 2, "pid=0"),
        (["pages", "--pid", "4194304"], 1, "no such program"),
        (["pages", "8GiB", "--pid", "1"], 2, "not allowed"),
    ],
)
def test_wrong_use_of_the_command(capsys, arguments, status, text):
    assert main(arguments) == status
    assert text in capsys.readouterr().err


def test_a_size_beyond_the_machine(capsys):
    assert main(["pages", "900000T"]) == 0
    assert " no " in capsys.readouterr().out


def test_host_command(capsys):
    assert main(["host"]) == 0
    assert "Linux" in capsys.readouterr().out
    assert main(["host", "--json"]) == 0
    assert {"facts", "tlb", "hazards"} <= set(json.loads(capsys.readouterr().out))
