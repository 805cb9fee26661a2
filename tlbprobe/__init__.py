"""What address translation costs: timed kernels on memory of a proved page size.

``chase``, ``lookup`` and ``translation`` measure one point, ``sweep`` and ``curve`` grids of them; ``Region``
is memory under a page policy, ``page_policies`` lists those there are, ``load`` reads saved results.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if find_spec("tlbprobe._core") is None:
    raise ImportError(
        "this is tlbprobe's source folder, without its compiled part: start Python elsewhere, or with -P, "
        "so that the installed package is found (after 'make curve': .venv/bin/python -P)"
    )

from . import probes
from .record import RECORDS
from .results.measurement import Measurement
from .results.result import Result

# Public names by the file that they live in, which is imported when one of them is used.
HOMES = {
    "cores.simulated": ("machines", "simulated"),
    "counters.groups": ("CounterEvent", "events"),
    "hierarchy.anatomy": ("Anatomy",),
    "hierarchy.effective": ("EffectivePageSize", "effective_page_size"),
    "hierarchy.measure": ("anatomy",),
    "machine.facts": ("Host", "host"),
    "memory.backing": ("Backing", "BackingError"),
    "memory.needs": ("PageNeed", "page_needs"),
    "memory.policies": ("PagePolicy", "page_policies"),
    "memory.region": ("Region",),
    "probes.fault": ("PageTimes",),
    "probes.shootdown": ("ShootdownTimes",),
    "programs.mappings": ("ProgramMapping", "program_mappings"),
    "programs.stat": ("ProgramRun", "stat"),
    "programs.trial": ("Trial",),
    "programs.verdicts": ("Verdict",),
    "programs.whatif": ("whatif",),
    "results.measurement": ("Measurement", "Translation"),
    "results.refusal": ("Refusal",),
    "results.result": ("load",),
    "sweeps.axes": ("counts", "sizes"),
    "sweeps.curve": ("Curve", "curve"),
    "sweeps.fault_parts": ("FaultParts", "fault_parts"),
    "sweeps.sweep": ("Sweep", "sweep"),
}

for _module in iter_modules(probes.__path__):  # every probe enters its record
    import_module(f"{probes.__name__}.{_module.name}")
PROBES = {name: record.function for name, record in RECORDS.items() if issubclass(record.result, Measurement)}

Result.pictures = staticmethod(lambda: import_module(".display.plot", __name__))
Result.import_others = staticmethod(lambda: [import_module(f".{home}", __name__) for home in HOMES])

__all__ = sorted(["PROBES", "model", *RECORDS, *(name for names in HOMES.values() for name in names)])


def _found(name: str) -> Any:
    if name in RECORDS:
        return RECORDS[name].function
    if name == "model":
        return import_module(".hierarchy.model", __name__)
    if name == "__version__":
        return import_module(".results.result", __name__).package_version()
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module 'tlbprobe' has no attribute {name!r}")


if not TYPE_CHECKING:  # to whom every name would be one

    def __getattr__(name: str) -> Any:
        return globals().setdefault(name, _found(name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


# The same for those who read types and run nothing; `make readme` writes it.
if TYPE_CHECKING:
    __version__: str
    # names
    from .cores.simulated import machines as machines
    from .cores.simulated import simulated as simulated
    from .counters.groups import CounterEvent as CounterEvent
    from .counters.groups import events as events
    from .hierarchy import model as model
    from .hierarchy.anatomy import Anatomy as Anatomy
    from .hierarchy.effective import EffectivePageSize as EffectivePageSize
    from .hierarchy.effective import effective_page_size as effective_page_size
    from .hierarchy.measure import anatomy as anatomy
    from .machine.facts import Host as Host
    from .machine.facts import host as host
    from .memory.backing import Backing as Backing
    from .memory.backing import BackingError as BackingError
    from .memory.needs import PageNeed as PageNeed
    from .memory.needs import page_needs as page_needs
    from .memory.policies import PagePolicy as PagePolicy
    from .memory.policies import page_policies as page_policies
    from .memory.region import Region as Region
    from .probes.chase import chase as chase
    from .probes.fault import PageTimes as PageTimes
    from .probes.fault import fault as fault
    from .probes.jump import jump as jump
    from .probes.lookup import lookup as lookup
    from .probes.objects import objects as objects
    from .probes.places import places as places
    from .probes.shootdown import ShootdownTimes as ShootdownTimes
    from .probes.shootdown import shootdown as shootdown
    from .probes.stride import stride as stride
    from .probes.translation import translation as translation
    from .programs.mappings import ProgramMapping as ProgramMapping
    from .programs.mappings import program_mappings as program_mappings
    from .programs.stat import ProgramRun as ProgramRun
    from .programs.stat import stat as stat
    from .programs.trial import Trial as Trial
    from .programs.verdicts import Verdict as Verdict
    from .programs.whatif import whatif as whatif
    from .results.measurement import Measurement as Measurement
    from .results.measurement import Translation as Translation
    from .results.refusal import Refusal as Refusal
    from .results.result import load as load
    from .sweeps.axes import counts as counts
    from .sweeps.axes import sizes as sizes
    from .sweeps.curve import Curve as Curve
    from .sweeps.curve import curve as curve
    from .sweeps.fault_parts import FaultParts as FaultParts
    from .sweeps.fault_parts import fault_parts as fault_parts
    from .sweeps.sweep import Sweep as Sweep
    from .sweeps.sweep import sweep as sweep
    # end of names
