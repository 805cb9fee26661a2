"""What address translation costs: timed kernels on memory of a proved page size.

``chase``, ``lookup`` and ``translation`` measure one point, ``sweep`` and ``curve`` grids of them; ``Region``
is memory under a page policy, ``page_policies`` lists those there are, ``load`` reads saved results.
"""

from importlib.util import find_spec
from typing import Any

if find_spec("tlbprobe._core") is None:
    raise ImportError(
        "this is tlbprobe's source folder, without its compiled part: start Python elsewhere, or with -P, "
        "so that the installed package is found (after 'make': .venv/bin/python -P)"
    )

from . import model
from .advice import PageNeed, ProgramMapping, page_needs, program_mappings
from .counters import CounterEvent, events
from .curves import Curve, curve
from .effective import EffectivePageSize, effective_page_size
from .facts import Host, host
from .faultparts import FaultParts, fault_parts
from .faults import PageTimes, fault
from .hierarchy import Anatomy, anatomy
from .measurement import Measurement, Translation, load
from .pages import Backing, BackingError, PagePolicy, Region, page_policies
from .probes import PROBES, chase, jump, lookup, objects, places, stride, translation
from .program import ProgramRun, stat
from .shootdowns import ShootdownTimes, shootdown
from .sweeps import Refusal, Sweep, counts, sizes, sweep
from .trials import Trial
from .trying import whatif
from .verdicts import Verdict

__all__ = [
    "PROBES",
    "Anatomy",
    "Backing",
    "BackingError",
    "CounterEvent",
    "Curve",
    "EffectivePageSize",
    "FaultParts",
    "Host",
    "Measurement",
    "PageNeed",
    "PagePolicy",
    "PageTimes",
    "ProgramMapping",
    "ProgramRun",
    "Refusal",
    "Region",
    "ShootdownTimes",
    "Sweep",
    "Translation",
    "Trial",
    "Verdict",
    "anatomy",
    "chase",
    "counts",
    "curve",
    "effective_page_size",
    "events",
    "fault",
    "fault_parts",
    "host",
    "jump",
    "load",
    "lookup",
    "model",
    "objects",
    "page_needs",
    "page_policies",
    "places",
    "program_mappings",
    "shootdown",
    "sizes",
    "stat",
    "stride",
    "sweep",
    "translation",
    "whatif",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .measurement import package_version

        return package_version()
    raise AttributeError(f"module 'tlbprobe' has no attribute {name!r}")
