"""What could spoil a measurement on this machine: small rules over its facts.

A hazard that the machine cannot have is not shown; one that cannot be known is shown as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..record import SETTLED, TIMED, TRAPPING, exposed_to
from ..units import approximate_size, short_size
from .files import CPUS
from .paging import THP

if TYPE_CHECKING:
    from .facts import Fact, Host, Value

SEVERITIES = ("high", "medium", "low", "unknown")
Judgement = tuple[str, str, str | None]  # severity, effect, command


@dataclass(frozen=True)
class Hazard:
    """Something that could spoil a measurement on this machine."""

    what: str
    severity: str  # "high", "medium", "low", or "unknown" if it may be there and cannot be read
    probes: tuple[str, ...]
    effect: str
    command: str | None  # removes it; None where no command can

    def __str__(self) -> str:
        """One line, or two with the command."""
        remedy = f"\n    {self.command}" if self.command else ""
        return f"{self.severity}: {self.what}: {self.effect}{remedy}"


@dataclass(frozen=True)
class Rule:
    """How one hazard follows from facts."""

    what: str
    touches: str  # what of a probe, by its record
    needs: tuple[str, ...]  # facts without which it cannot be judged, unless the kernel has no such thing
    judge: Callable[[Host], Judgement | None]

    def hazard(self, host: Host) -> Hazard | None:
        """Judge; a fact that may exist and cannot be read makes the hazard unknown."""
        probes = exposed_to(self.touches)
        for name in self.needs:
            if name in host and (fact := host.fact(name)).unreadable:
                return Hazard(self.what, "unknown", probes, f"{name} is unknown: {fact.reason}", None)
        verdict = self.judge(host)
        return Hazard(self.what, verdict[0], probes, *verdict[1:]) if verdict else None


def _number_of(host: Host, name: str) -> float:
    """Value of a fact that counts, 0 where there is none: for thresholds only."""
    value = host.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


def _echo(value: str, *paths: str) -> str:
    return f"echo {value} | sudo tee {' '.join(f'/{path}' for path in paths)}"


def _pmd_mode_fact(host: Host) -> tuple[Value | None, str]:
    """Mode that holds for PMD-sized pages, and the file that sets it: the size's own unless it inherits."""
    own = _pmd_name(host)
    if host.get(own) in (None, "inherit"):
        return host.get("thp.enabled"), f"{THP}/enabled"
    return host[own], _path(host.fact(own))


def _pmd_name(host: Host) -> str:
    return f"thp.enabled.{short_size(int(_number_of(host, 'pages.pmd')))}"


def _path(fact: Fact) -> str:
    return fact.source.replace("sysfs: ", "sys/")


def _advised_only(host: Host) -> bool:
    return host.get("process.thp_disabled") in (1, 3)


def _default_is_huge(host: Host) -> Judgement | None:
    mode, file = _pmd_mode_fact(host)
    if mode != "always" or _advised_only(host):
        return None
    effect = 'memory without advice is huge already: pages="default" is like "thp"; compare with "base"'
    return "high", effect, _echo("madvise", file)


def _default_is_mthp(host: Host) -> Judgement | None:
    always = ("always", "inherit") if host.get("thp.enabled") == "always" else ("always",)
    others = (name for name in host if name.startswith("thp.enabled.") and name != _pmd_name(host))
    sizes = [name for name in others if host[name] in always]
    if not sizes or _advised_only(host):
        return None
    shown = ", ".join(name.rpartition(".")[2] for name in sizes)
    effect = f'pages="default" gets folios of {shown}, which the TLB may hold as one entry'
    return "medium", effect, _echo("madvise", *(_path(host.fact(name)) for name in sizes))


def _advice_ignored(host: Host) -> Judgement | None:
    if host.get("process.thp_disabled") != 1:
        return None
    return "high", "this process was forbidden huge pages (prctl): advice succeeds and does nothing", None


def _khugepaged_acts(host: Host) -> Judgement | None:
    mode, _ = _pmd_mode_fact(host)
    if mode not in ("always", "madvise") or host.get("khugepaged.defrag") is not True:
        return None
    any_memory = mode == "always"
    which = 'any memory but "base"' if any_memory else "advised memory that is not huge yet (mTHP, say)"
    effect = f"khugepaged may turn {which} into huge pages in the middle of a run"
    return "medium" if any_memory else "low", effect, _echo("0", f"{THP}/khugepaged/defrag")


def _fragmented(host: Host) -> Judgement | None:
    share = host.get("memory.free_huge")
    if not isinstance(share, int | float) or share >= 50:
        return None
    severity = "high" if share < 10 else "medium"
    effect = f"only {share} % of free memory can serve a huge page at once: they are refused, or slow to get"
    return severity, effect, _echo("1", "proc/sys/vm/compact_memory")


def _short_of_memory(host: Host) -> Judgement | None:
    pressure, total = _number_of(host, "load.memory_pressure"), _number_of(host, "memory.total")
    available, left = _number_of(host, "memory.available"), _number_of(host, "limit.memory_left")
    if pressure > 1:
        return "medium", f"tasks wait for memory {pressure} % of the time: pages are reclaimed", None
    if total and available < total / 10:
        return ("medium", f"only {approximate_size(available)} are available: pages may be reclaimed", None)
    if left < _number_of(host, "limit.memory") / 10:
        return (
            "medium",
            f"only {approximate_size(left)} are left below the limit of the control group",
            None,
        )
    return None


def _swaps(host: Host) -> Judgement | None:
    total, free = _number_of(host, "swap.total"), _number_of(host, "swap.free")
    if not total:
        return None
    used = total - free
    severity = "medium" if used > total / 10 else "low"
    return (severity, f"pages may be written out in a run ({approximate_size(used)} are)", "sudo swapoff -a")


def _numa_balances(host: Host) -> Judgement | None:
    if not int(_number_of(host, "numa.balancing")) & 1 or _number_of(host, "numa.nodes") < 2:
        return None
    effect = "the kernel unmaps pages to see who uses them: hint faults and migration in the middle of a run"
    return "medium", effect, "sudo sysctl kernel.numa_balancing=0"


def _several_nodes(host: Host) -> Judgement | None:
    if _number_of(host, "numa.allowed") < 2:
        return None
    effect = "memory or page tables may lie on another node than the CPU: run under numactl -N 0 -m 0"
    return "low", effect, None


def _merges(host: Host) -> Judgement | None:
    if host.get("ksm.run") != 1:
        return None
    severity = "medium" if host.get("process.memory_merge") is True else "low"
    effect = "equal pages are merged: huge pages are split, and the next write faults"
    return severity, effect, _echo("0", "sys/kernel/mm/ksm/run")


def _samples_access(host: Host) -> Judgement | None:
    if host.get("damon.running") is not True:
        return None
    effect = "DAMON clears accessed bits: the next walk to such a page has to write its entry"
    return "medium", effect, _echo("off", "sys/kernel/mm/damon/admin/kdamonds/*/state")


def _clock_varies(host: Host) -> Judgement | None:
    governors = host.get("cpu.governor")
    if governors is None:
        return "unknown", "no governor is to be seen here: the clock may change in a run", None
    if governors == "performance":
        return None
    effect = f"governor {governors}: the core clock follows the load, and nanoseconds follow the clock"
    return "medium", effect, _echo("performance", f"{CPUS}/cpufreq/policy*/scaling_governor")


def _boosts(host: Host) -> Judgement | None:
    boost = host.get("cpu.boost")
    if boost is None:
        return "unknown", "turbo cannot be seen here: the clock may depend on heat and on other cores", None
    if boost is False:
        return None
    intel = "intel_pstate" in host.fact("cpu.boost").source
    command = _echo("1", f"{CPUS}/intel_pstate/no_turbo") if intel else _echo("0", f"{CPUS}/cpufreq/boost")
    return "medium", "turbo: the clock depends on heat and on what other cores do", command


def _shares_core(host: Host) -> Judgement | None:
    if host.get("cpu.smt_active") is True:
        busy = _number_of(host, "load.average") > 1
        severity = "medium" if busy else "low"
        effect = "a sibling thread, if busy, takes its share of the TLBs and caches of our core"
        return severity, effect, _echo("off", f"{CPUS}/smt/control")
    if host.get("virtualisation.guest") is True and host.get("kernel.arch") != "aarch64":
        return "unknown", "a guest cannot see who runs on the other thread of its core", None
    return None


def _loaded(host: Host) -> Judgement | None:
    load, cpus = _number_of(host, "load.average"), max(_number_of(host, "cpu.online"), 1)
    pressure = _number_of(host, "load.cpu_pressure")
    if load < max(cpus / 2, 1.5) and pressure < 5:  # our own process counts as one
        return None
    severity = "high" if load > cpus or pressure > 20 else "medium"
    effect = f"load {load} on {cpus:g} CPUs: others take caches, bandwidth and time from us"
    return severity, effect, None


def _stolen(host: Host) -> Judgement | None:
    share = _number_of(host, "load.stolen")
    if share < 1:
        return None
    return "high" if share > 10 else "medium", f"the hypervisor ran others in {share} % of our time", None


def _throttled(host: Host) -> Judgement | None:
    quota, cpus = _number_of(host, "limit.cpu"), _number_of(host, "cpu.allowed")
    if not quota or (cpus and quota >= cpus):
        return None
    return "medium", f"the control group grants {quota:g} CPUs: beyond that we stand still for a while", None


def _two_kinds_of_core(host: Host) -> Judgement | None:
    if host.get("cpu.hybrid") is not True:
        return None
    return "medium", "cores differ in their TLBs and in their clock: pin the measurement with cpu=", None


FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter")


def _slow_clock(host: Host) -> Judgement | None:
    clock = host.get("clock.source")
    if clock is None or clock in FAST_CLOCKS:
        return None
    offered = "tsc" in str(host.get("clock.available") or "").split()
    command = _echo("tsc", "sys/devices/system/clocksource/clocksource0/current_clocksource")
    return "medium", f"clock source {clock}: reading the time is a system call", command if offered else None


def _watchdog_counts(host: Host) -> Judgement | None:
    if host.get("perf.nmi_watchdog") is not True or host.get("perf.pmu") in (None, "none"):
        return None
    effect = "the NMI watchdog holds one hardware counter: a full group of counters is multiplexed"
    return "low", effect, "sudo sysctl kernel.nmi_watchdog=0"


def _isolates_tables(host: Host) -> Judgement | None:
    if host.get("kernel.kpti") is not True:
        return None
    flush = host.get("paging.pcid") is False
    cost = " and empties the TLB, for want of PCID" if flush else ""
    effect = f"every entry to the kernel changes page tables{cost}; a protection: pti=off at boot ends it"
    return "medium" if flush else "low", effect, None


HAZARD_RULES = (
    Rule("default pages are huge", TIMED, ("thp.enabled",), _default_is_huge),
    Rule("default pages are mTHP", TIMED, ("thp.enabled",), _default_is_mthp),
    Rule("advice is ignored", TIMED, (), _advice_ignored),
    Rule("khugepaged", SETTLED, ("thp.enabled", "khugepaged.defrag"), _khugepaged_acts),
    Rule("fragmented memory", TIMED, ("memory.free_huge",), _fragmented),
    Rule("memory pressure", TIMED, ("memory.available",), _short_of_memory),
    Rule("swap", TIMED, ("swap.total",), _swaps),
    Rule("NUMA balancing", TIMED, ("numa.balancing",), _numa_balances),
    Rule("several NUMA nodes", TIMED, ("numa.allowed",), _several_nodes),
    Rule("page merging (KSM)", TIMED, ("ksm.run",), _merges),
    Rule("access sampling (DAMON)", TIMED, ("damon.running",), _samples_access),
    Rule("varying clock", TIMED, (), _clock_varies),
    Rule("turbo", TIMED, (), _boosts),
    Rule("SMT sibling", TIMED, ("cpu.smt_active",), _shares_core),
    Rule("load", TIMED, ("load.average",), _loaded),
    Rule("stolen time", TIMED, ("load.stolen",), _stolen),
    Rule("CPU quota", TIMED, (), _throttled),
    Rule("two kinds of core", TIMED, ("cpu.hybrid",), _two_kinds_of_core),
    Rule("slow clock source", TIMED, ("clock.source",), _slow_clock),
    Rule("NMI watchdog", TIMED, (), _watchdog_counts),
    Rule("page-table isolation", TRAPPING, ("kernel.kpti",), _isolates_tables),
)
