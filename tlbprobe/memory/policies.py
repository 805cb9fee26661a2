"""Page policies by name: what each asks of the kernel, and whether this machine offers it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from ..cores.current import current
from ..machine import files, paging
from ..units import format_size, page_suffix

PolicyKind = Literal["base", "default", "thp", "mthp", "collapse", "hugetlb"]

THP_FOLDER = "/sys/kernel/mm/transparent_hugepage"
HUGETLB_FOLDER = "/sys/kernel/mm/hugepages"
# By <linux/mman.h>, the same on every architecture that we run on; the mmap module may lack them.
MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)
MADV_NOHUGEPAGE = getattr(mmap, "MADV_NOHUGEPAGE", 15)


@dataclass(frozen=True)
class PagePolicy:
    """A page policy: what a region asks of the kernel, and whether this machine offers it."""

    name: str
    kind: PolicyKind
    page_size: int | None  # bytes; None: the kernel decides
    offered: bool = True
    reason: str = ""  # why it is not offered
    command: str = ""  # what would offer it

    def __str__(self) -> str:
        if self.offered:
            return f"{self.name}: offered"
        return f"{self.name}: {self.reason}" + (f"; to offer it: {self.command}" if self.command else "")


def page_policies(root: files.Root = "/") -> list[PagePolicy]:
    """List every page policy that the kernel knows, offered ones and others.

    Returns
    -------
    list of PagePolicy
        ``name`` is what `pages` takes, ``page_size`` is in bytes. Where ``offered`` is false, ``reason``
        says why and ``command`` what would offer it: nothing here changes the machine.
    """
    return [
        PagePolicy("base", "base", paging.base_page_size()),
        PagePolicy("default", "default", None),
        *_thp_policies(root),
        *_hugetlb_policies(root),
    ]


def _thp_policies(root: files.Root) -> Iterator[PagePolicy]:
    pmd = paging.pmd_size(root)
    if pmd is None:
        return
    for size, (mode, path) in thp_modes(root).items():
        name, kind = (f"thp-{page_suffix(size)}", "mthp") if size < pmd else ("thp", "thp")
        yield _thp_policy(name, cast(PolicyKind, kind), size, mode, path)
    yield _thp_policy("collapse", "collapse", pmd, "always", "")  # whatever the mode


def thp_modes(root: files.Root = "/") -> dict[int, tuple[str, str]]:
    """Mode in force of each transparent huge page size, and the file that sets it."""
    pmd = paging.pmd_size(root)
    if pmd is None:
        return {}
    modes = {pmd: "inherit", **paging.mthp_modes(root)}
    inherited = paging.thp_mode(root) or "never"
    return {
        size: (inherited, f"{THP_FOLDER}/enabled")
        if mode == "inherit"
        else (mode, f"{THP_FOLDER}/hugepages-{size >> 10}kB/enabled")
        for size, mode in sorted(modes.items())
        if paging.base_page_size() < size <= pmd
    }


def _thp_policy(name: str, kind: PolicyKind, size: int, mode: str, path: str) -> PagePolicy:
    if paging.thp_disabled() == 1:
        reason = "transparent huge pages are disabled for this process (prctl PR_SET_THP_DISABLE, inherited)"
        return PagePolicy(name, kind, size, False, reason, "start it from a process without this setting")
    if mode == "never":
        command = f"echo madvise | sudo tee {path}"
        return PagePolicy(name, kind, size, False, f"{path} is 'never'", command)
    return PagePolicy(name, kind, size)


def possible_sizes(policy: PagePolicy) -> list[int]:
    """Page sizes below the PMD size that the kernel may give to a policy, the base page first."""
    enabled = {
        "base": (),
        "default": ("always",),
        "collapse": ("always",),
        "thp": ("always", "madvise"),
        "mthp": ("always", "madvise"),
        "hugetlb": (),
    }[policy.kind]
    below = policy.page_size or paging.pmd_size() or 0
    sizes = [size for size, (mode, _) in thp_modes().items() if mode in enabled and size <= below]
    return [paging.base_page_size(), *(size for size in sizes if size != paging.pmd_size())]


def _hugetlb_policies(root: files.Root) -> Iterator[PagePolicy]:
    default = paging.default_hugetlb_size(root)
    for size, pool in paging.hugetlb_pools(root).items():
        name = "hugetlb" if size == default else f"hugetlb-{page_suffix(size)}"
        if pool.available or pool.overcommit > pool.surplus:
            yield PagePolicy(name, "hugetlb", size)
        else:
            pages = f"{pool.total} pages of {format_size(size)} reserved, none free"
            command = (
                f"echo N | sudo tee {HUGETLB_FOLDER}/hugepages-{size >> 10}kB/nr_hugepages "
                f"(N pages of {format_size(size)})"
            )
            yield PagePolicy(name, "hugetlb", size, False, pages, command)


def find_policy(pages: str) -> PagePolicy:
    """Policy of a name, an alias such as ``hugetlb-2M`` included; a ValueError lists the names there are."""
    if not isinstance(pages, str):
        raise TypeError(f"pages={pages!r} must be the name of a page policy, such as 'base' or 'thp'")
    known = page_policies()
    for policy in known:
        if policy.name == pages:
            return policy
    stem, _, suffix = pages.partition("-")
    kinds: tuple[str, ...] = {"thp": ("thp", "mthp"), "hugetlb": ("hugetlb",)}.get(stem, ())
    for policy in known:
        if policy.page_size and policy.kind in kinds and page_suffix(policy.page_size) == suffix.upper():
            return policy
    names = ", ".join(policy.name for policy in known)
    raise ValueError(f"pages={pages!r} is no page policy of this kernel: it has {names}")


def alignment_of(policy: PagePolicy) -> int:
    """Bytes: whole huge pages fit only where the region begins on one; all policies begin alike."""
    return max(paging.pmd_size() or 0, policy.page_size or 0, paging.base_page_size())


def piece_of(policy: PagePolicy) -> int:
    """Bytes that the mapping is split into, so that no larger page that is enabled fits; 0: whole."""
    if policy.kind != "mthp" or policy.page_size is None:
        return 0
    enabled = [size for size, (mode, _) in thp_modes().items() if mode != "never"]
    return min((size for size in enabled if size > policy.page_size), default=0) // 2


def mapping_request(policy: PagePolicy) -> dict[str, int]:
    """How a mapping on a policy is made, as _core takes it; that of a simulated machine is address space."""
    base = paging.base_page_size()
    page = policy.page_size or base
    if current().pages:
        return {"alignment": alignment_of(policy), "base_page": base, "page": page}
    return {
        "alignment": alignment_of(policy),
        "base_page": base,
        "page": page,
        "huge_shift": page.bit_length() - 1 if policy.kind == "hugetlb" else 0,
        "piece": piece_of(policy),
    }


def advice_for(policy: PagePolicy) -> int | None:
    """Advice of madvise(2) that a policy needs before the first touch."""
    if policy.kind == "base":  # a kernel that has only base pages knows no such advice
        return None if paging.pmd_size() is None else MADV_NOHUGEPAGE
    return MADV_HUGEPAGE if policy.kind in ("thp", "mthp") else None


def default_page() -> int | None:
    """Bytes of the pages that memory without advice gets; ``None`` where the kernel chooses among several."""
    default = PagePolicy("default", "default", None)
    pmd_mode = thp_modes().get(paging.pmd_size() or 0, ("never", ""))[0]
    sizes = possible_sizes(default)
    return sizes[0] if len(sizes) == 1 and pmd_mode != "always" else None


def round_up(size: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-size // unit) * unit


def mapped_size(size: int, policy: PagePolicy) -> int:
    """Bytes that a region of a size maps: whole pages of the policy."""
    return round_up(size, max(policy.page_size or 0, paging.base_page_size()))


COLLAPSE = "'collapse' makes huge pages of what was touched before"
