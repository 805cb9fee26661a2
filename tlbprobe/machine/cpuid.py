"""What a processor says about itself: its name, and the TLB that it claims.

Pure functions over a dump of CPUID leaves, so that any recorded machine can be decoded anywhere; only
`dump_cpuid` asks the processor. A claim is not a measurement: hypervisors filter leaves, so each row says
whether it can be relied on.

Sources: AMD64 Architecture Programmer's Manual volume 3, appendix E; Intel SDM volume 2A, CPUID;
Linux arch/x86/include/asm/intel-family.h and cpuid_0x2_table.c, arch/arm64/include/asm/cputype.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..declared import Bytes, Declared, Whole

Registers = tuple[int, int, int, int]  # EAX, EBX, ECX, EDX
Dump = Mapping[tuple[int, int], Registers]  # by leaf and subleaf
Reader = Callable[[int, int], Registers | None]

K, M, G = 1 << 10, 1 << 20, 1 << 30
NO_LEAF: Registers = (0, 0, 0, 0)
MOST_SUBLEAVES = 64  # no processor has as many; a hypervisor may claim anything

# The leaves decoded here, in the order of their numbers.
BASIC = (0x0, 0x1, 0x2, 0x7, 0x1A)
HYPERVISOR = (0x40000000,)
EXTENDED = (0x80000000, 0x80000001, 0x80000005, 0x80000006, 0x80000008, 0x80000019, 0x80000021)


# --- asking the processor --------------------------------------------------------------------------------


def dump_cpuid() -> dict[tuple[int, int], Registers]:
    """Leaves of the processor that runs us; empty where there is no CPUID, as on aarch64."""
    try:
        from .. import _core  # the only caller; this module must work without the compiled part
    except ImportError:
        return {}
    read: Reader | None = getattr(_core, "cpuid", None)
    return dump(read) if read else {}


def dump(read: Reader) -> dict[tuple[int, int], Registers]:
    """Leaves that `read` offers; one above the highest repeats another on Intel, so it is not read."""
    last = {base: (read(base, 0) or NO_LEAF)[0] for base in (0x0, 0x80000000)}
    wanted = [(leaf, 0) for leaf in BASIC if leaf <= last[0]]
    wanted += [(0x18, sub) for sub in _subleaves(read, last[0])]
    wanted += [(leaf, 0) for leaf in HYPERVISOR]
    wanted += [(leaf, 0) for leaf in EXTENDED if leaf <= last[0x80000000]]
    return {key: found for key in wanted if (found := read(*key))}


def _subleaves(read: Reader, last_leaf: int) -> range:
    if last_leaf < 0x18:
        return range(0)
    return range(min((read(0x18, 0) or NO_LEAF)[0], MOST_SUBLEAVES) + 1)


# --- identity --------------------------------------------------------------------------------------------


def vendor(dump: Dump) -> str | None:
    """Return the twelve letters of leaf 0, such as 'GenuineIntel'."""
    if (0, 0) not in dump:
        return None
    _, ebx, ecx, edx = _leaf(dump, 0)
    return _letters(ebx, edx, ecx)


def hypervisor_signature(dump: Dump) -> str | None:
    """Return the twelve letters of leaf 0x40000000, or ``None`` on bare metal."""
    if not is_guest(dump) or (0x40000000, 0) not in dump:
        return None
    return _letters(*_leaf(dump, 0x40000000)[1:])


def _letters(*registers: int) -> str:
    text = b"".join(register.to_bytes(4, "little") for register in registers)
    return "".join(letter if letter.isprintable() else "" for letter in text.decode("latin-1"))


def is_guest(dump: Dump) -> bool:
    """Whether a hypervisor announces itself."""
    return bool(_bit(_leaf(dump, 1)[2], 31))


def family(dump: Dump) -> int:
    """Display family: the extended one added where the base one is full."""
    eax = _leaf(dump, 1)[0]
    base = _bits(eax, 8, 11)
    return base + (_bits(eax, 20, 27) if base == 0xF else 0)


def core_type(dump: Dump) -> str | None:
    """Kind of core in a hybrid processor: 'performance' or 'efficient'."""
    kind = _bits(_leaf(dump, 0x1A)[0], 24, 31)
    return {0x20: "efficient", 0x40: "performance"}.get(kind)


def _leaf(dump: Dump, leaf: int, subleaf: int = 0) -> Registers:
    """Return the registers of a leaf, all zero where it is absent, as the processor itself does."""
    eax, ebx, ecx, edx = (register & 0xFFFFFFFF for register in dump.get((leaf, subleaf), NO_LEAF))
    return eax, ebx, ecx, edx


def _bit(register: int, position: int) -> int:
    return register >> position & 1


def _bits(register: int, low: int, high: int) -> int:
    return register >> low & (1 << high - low + 1) - 1


# --- the claimed TLB -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TlbClaim(Declared):
    """One translation cache as CPUID states it.

    A page size may be held by several rows of one level: then its entries add up.
    """

    level: Whole
    side: str  # "data", "instruction" or "unified"
    page_sizes: tuple[Bytes, ...]
    entries: Whole
    ways: Whole | None  # equal to entries: fully associative; None: not stated
    reliable: bool = True
    candidate: Whole | None = None  # entries if the times-32 flag was hidden from us
    access: str = "any"  # "load" or "store" where a structure serves only one of them
    source: str = ""
    note: str = ""


def tlb(dump: Dump) -> tuple[TlbClaim, ...]:
    """Every TLB that the processor claims, first level first; empty where it claims none."""
    decoders = {"AuthenticAMD": _amd, "HygonGenuine": _amd, "GenuineIntel": _intel_claims}
    decode = decoders.get(vendor(dump) or "")
    rows = decode(dump) if decode else ()
    return tuple(sorted(rows, key=lambda row: (row.level, row.side, row.page_sizes)))


def reach(claims: tuple[TlbClaim, ...], page_size: int, access: str = "load") -> dict[int, int]:
    """Bytes that each level covers for data pages of `page_size`; an unreliable claim is left out."""
    covered: dict[int, int] = {}
    for row in claims:
        if row.reliable and page_size in row.page_sizes and _serves(row, access):
            covered[row.level] = covered.get(row.level, 0) + row.entries * page_size
    return covered


def _serves(row: TlbClaim, access: str) -> bool:
    return row.side != "instruction" and row.access in ("any", access)


# AMD: one register is a page size of a level, its upper half data, its lower half instruction.

AMD_WAYS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 16, 0xA: 32, 0xB: 48, 0xC: 64, 0xD: 96, 0xE: 128}
FULL = 0xF
AMD_REGISTERS = (  # level, leaf, register, page sizes
    (1, 0x80000005, 0, (2 * M,)),
    (1, 0x80000005, 1, (4 * K,)),
    (1, 0x80000019, 0, (G,)),
    (2, 0x80000006, 0, (2 * M,)),
    (2, 0x80000006, 1, (4 * K,)),
    (2, 0x80000019, 1, (G,)),
)
HIDDEN_FLAG = "raw field: such processors count in multiples of 32, and the hypervisor hides the flag for it"


def _amd(dump: Dump) -> Iterator[TlbClaim]:
    for level, leaf, register, sizes in AMD_REGISTERS:
        value = _leaf(dump, leaf)[register]
        for side, half in _amd_halves(level, value):
            count, ways = _amd_half(leaf, half)
            if count:
                yield _amd_claim(dump, TlbClaim(level, side, sizes, count, ways, source=f"CPUID {leaf:#x}"))


def _amd_halves(level: int, value: int) -> tuple[tuple[str, int], ...]:
    data, instruction = value >> 16, value & 0xFFFF
    if level == 2 and instruction and not data:
        return (("unified", instruction),)  # how K8 to K10 state a shared L2 TLB
    return ("data", data), ("instruction", instruction)


def _amd_half(leaf: int, half: int) -> tuple[int, int | None]:
    """Entries and ways: two bytes in leaf 5, else twelve bits of entries under a code of ways."""
    if leaf == 0x80000005:
        count, ways = half & 0xFF, half >> 8
        return count, count if ways == 0xFF else ways or None
    count, code = half & 0xFFF, half >> 12
    return (count if code else 0), count if code == FULL else AMD_WAYS.get(code)


def _amd_claim(dump: Dump, raw: TlbClaim) -> TlbClaim:
    """Apply the times-32 flag to the second level, and doubt where a hypervisor may hide it."""
    if raw.level == 1:
        return raw
    scaled = raw.entries * 32
    if _bit(_leaf(dump, 0x80000021)[0], 14):
        ways = scaled if raw.ways == raw.entries else raw.ways
        return replace(raw, entries=scaled, ways=ways, note="stated in multiples of 32")
    if family(dump) >= 0x1A and is_guest(dump) and raw.entries < 512:
        return replace(raw, reliable=False, candidate=scaled, note=HIDDEN_FLAG)
    return raw


# Intel: leaf 0x18 where there is one, else the descriptors of leaf 2.

TLB_SIDES = {
    1: ("data", "any"),
    2: ("instruction", "any"),
    3: ("unified", "any"),
    4: ("data", "load"),
    5: ("data", "store"),
}
INTEL_SIZES = (4 * K, 2 * M, 4 * M, G)


def _intel_claims(dump: Dump) -> list[TlbClaim]:
    subleaves = sorted(subleaf for leaf, subleaf in dump if leaf == 0x18)
    rows = [row for subleaf in subleaves if (row := _intel_subleaf(_leaf(dump, 0x18, subleaf)))]
    return rows or list(_descriptors(_leaf(dump, 2)))


def _intel_subleaf(registers: Registers) -> TlbClaim | None:
    _, ebx, sets, edx = registers
    sizes = tuple(size for position, size in enumerate(INTEL_SIZES) if _bit(ebx, position))
    ways, level = _bits(ebx, 16, 31), _bits(edx, 5, 7)
    if _bits(edx, 0, 4) not in TLB_SIDES or not (sizes and ways and sets):
        return None  # a null subleaf, or a kind we do not know
    side, access = TLB_SIDES[_bits(edx, 0, 4)]
    entries = ways * sets
    ways = entries if _bit(edx, 8) else ways
    return TlbClaim(level, side, sizes, entries, ways, access=access, source="CPUID 0x18")


def _descriptors(registers: Registers) -> Iterator[TlbClaim]:
    """Rows of leaf 2: a register counts if its top bit is clear; the lowest byte is no descriptor."""
    valid = [0 if _bit(register, 31) else register for register in registers]
    codes = b"".join(register.to_bytes(4, "little") for register in valid)[1:]
    for code in codes:
        for level, side, sizes, entries, ways in DESCRIPTORS.get(code, ()):
            yield TlbClaim(level, side, sizes, entries, ways, source=f"CPUID 0x2 descriptor {code:#04x}")


_4K, _4M, _2M4M, _ALL = (4 * K,), (4 * M,), (2 * M, 4 * M), (4 * K, 2 * M, 4 * M)
_4K2M, _4K4M = (4 * K, 2 * M), (4 * K, 4 * M)
_D, _I, _U = "data", "instruction", "unified"
_DescriptorRow = tuple[int, str, tuple[int, ...], int, int | None]
DESCRIPTORS: dict[int, tuple[_DescriptorRow, ...]] = {
    0x01: ((1, _I, _4K, 32, 4),),
    0x02: ((1, _I, _4M, 2, 2),),
    0x03: ((1, _D, _4K, 64, 4),),
    0x04: ((1, _D, _4M, 8, 4),),
    0x05: ((2, _D, _4M, 32, 4),),
    0x0B: ((1, _I, _4M, 4, 4),),
    0x4F: ((1, _I, _4K, 32, None),),
    0x50: ((1, _I, _ALL, 64, None),),
    0x51: ((1, _I, _ALL, 128, None),),
    0x52: ((1, _I, _ALL, 256, None),),
    0x55: ((1, _I, _2M4M, 7, 7),),
    0x56: ((1, _D, _4M, 16, 4),),
    0x57: ((1, _D, _4K, 16, 4),),
    0x59: ((1, _D, _4K, 16, 16),),
    0x5A: ((1, _D, _2M4M, 32, 4),),
    0x5B: ((1, _D, _4K4M, 64, None),),
    0x5C: ((1, _D, _4K4M, 128, None),),
    0x5D: ((1, _D, _4K4M, 256, None),),
    0x61: ((1, _I, _4K, 48, 48),),
    0x63: ((1, _D, _2M4M, 32, 4), (1, _D, (G,), 4, 4)),
    0x64: ((1, _D, _4K, 512, 4),),
    0x6A: ((1, _D, _4K, 64, 8),),
    0x6B: ((2, _D, _4K, 256, 8),),
    0x6C: ((2, _D, _2M4M, 128, 8),),
    0x6D: ((2, _D, (G,), 16, 16),),
    0x76: ((1, _I, _2M4M, 8, 8),),
    0xA0: ((1, _D, _4K, 32, 32),),
    0xB0: ((1, _I, _4K, 128, 4),),
    0xB1: ((1, _I, (2 * M,), 8, 4),),
    0xB2: ((1, _I, _4K, 64, 4),),
    0xB3: ((1, _D, _4K, 128, 4),),
    0xB4: ((2, _D, _4K, 256, 4),),
    0xB5: ((1, _I, _4K, 64, 8),),
    0xB6: ((1, _I, _4K, 128, 8),),
    0xBA: ((2, _D, _4K, 64, 4),),
    0xC0: ((1, _D, _4K4M, 8, 4),),
    0xC1: ((2, _U, _4K2M, 1024, 8),),
    0xC2: ((1, _D, _4K2M, 16, 4),),
    0xC3: ((2, _U, _4K2M, 1536, 6), (2, _U, (G,), 16, 4)),
    0xC4: ((1, _D, _2M4M, 32, 4),),
    0xCA: ((2, _U, _4K, 512, 4),),
}


# --- microarchitecture -----------------------------------------------------------------------------------

_INTEL_6 = {
    "Nehalem": (0x1A, 0x1E, 0x1F, 0x2E),
    "Westmere": (0x25, 0x2C, 0x2F),
    "Sandy Bridge": (0x2A, 0x2D),
    "Ivy Bridge": (0x3A, 0x3E),
    "Haswell": (0x3C, 0x3F, 0x45, 0x46),
    "Broadwell": (0x3D, 0x47, 0x4F, 0x56),
    "Skylake": (0x4E, 0x5E),
    "Skylake-X": (0x55,),  # Cascade Lake and Cooper Lake by stepping, see intel_microarchitecture
    "Kaby Lake or Coffee Lake": (0x8E, 0x9E),
    "Comet Lake": (0xA5, 0xA6),
    "Cannon Lake": (0x66,),
    "Ice Lake": (0x7D, 0x7E, 0x9D),
    "Ice Lake-X": (0x6A, 0x6C),
    "Rocket Lake": (0xA7,),
    "Tiger Lake": (0x8C, 0x8D),
    "Lakefield (hybrid: Sunny Cove, Tremont)": (0x8A,),
    "Alder Lake (hybrid: Golden Cove, Gracemont)": (0x97, 0x9A),
    "Raptor Lake (hybrid: Raptor Cove, Gracemont)": (0xB7, 0xBA, 0xBF),
    "Bartlett Lake (Raptor Cove)": (0xD7,),
    "Meteor Lake (hybrid: Redwood Cove, Crestmont)": (0xAA, 0xAC),
    "Arrow Lake-U (hybrid: Redwood Cove, Crestmont)": (0xB5,),
    "Arrow Lake (hybrid: Lion Cove, Skymont)": (0xC5, 0xC6),
    "Lunar Lake (hybrid: Lion Cove, Skymont)": (0xBD,),
    "Panther Lake (hybrid: Cougar Cove, Darkmont)": (0xCC,),
    "Wildcat Lake": (0xD5,),
    "Sapphire Rapids (Golden Cove)": (0x8F,),
    "Emerald Rapids (Raptor Cove)": (0xCF,),
    "Granite Rapids (Redwood Cove)": (0xAD, 0xAE),
    "Sierra Forest (Crestmont)": (0xAF,),
    "Grand Ridge (Crestmont)": (0xB6,),
    "Clearwater Forest (Darkmont)": (0xDD,),
    "Alder Lake-N (Gracemont)": (0xBE,),
    "Bonnell": (0x1C, 0x26),
    "Saltwell": (0x27, 0x35, 0x36),
    "Silvermont": (0x37, 0x4A, 0x4D, 0x5A),
    "Airmont": (0x4C, 0x75),
    "Goldmont": (0x5C, 0x5F),
    "Goldmont Plus": (0x7A,),
    "Tremont": (0x86, 0x96, 0x9C),
    "Knights Landing": (0x57,),
    "Knights Mill": (0x85,),
}
INTEL_DESIGNS = {(6, model): name for name, models in _INTEL_6.items() for model in models} | {
    (0x12, 0x01): "Nova Lake (hybrid: Coyote Cove, Arctic Wolf)",
    (0x12, 0x03): "Nova Lake (hybrid: Coyote Cove, Arctic Wolf)",
    (0x13, 0x01): "Diamond Rapids",
}
# Family: the core of the listed model groups (model >> 4), and the core of all others.
AMD_DESIGNS = {
    0x17: ("Zen 1", (0x0, 0x1, 0x2), "Zen 2"),
    0x18: ("Zen 1 (Dhyana)", (0x0,), None),
    0x19: ("Zen 3", (0x0, 0x2, 0x4, 0x5), "Zen 4"),
    0x1A: ("Zen 5", (0x0, 0x1, 0x2, 0x4, 0x6, 0x7), "Zen 6"),
}
ZEN_PLUS = (0x08, 0x18)  # 12 nm shrink of Zen 1
ARM_DESIGNS = {
    0x41: {
        0xD03: "Cortex-A53",
        0xD04: "Cortex-A35",
        0xD05: "Cortex-A55",
        0xD06: "Cortex-A65",
        0xD07: "Cortex-A57",
        0xD08: "Cortex-A72",
        0xD09: "Cortex-A73",
        0xD0A: "Cortex-A75",
        0xD0B: "Cortex-A76",
        0xD0C: "Neoverse-N1",
        0xD0D: "Cortex-A77",
        0xD0E: "Cortex-A76AE",
        0xD40: "Neoverse-V1",
        0xD41: "Cortex-A78",
        0xD42: "Cortex-A78AE",
        0xD43: "Cortex-A65AE",
        0xD44: "Cortex-X1",
        0xD46: "Cortex-A510",
        0xD47: "Cortex-A710",
        0xD48: "Cortex-X2",
        0xD49: "Neoverse-N2",
        0xD4A: "Neoverse-E1",
        0xD4B: "Cortex-A78C",
        0xD4C: "Cortex-X1C",
        0xD4D: "Cortex-A715",
        0xD4E: "Cortex-X3",
        0xD4F: "Neoverse-V2",
        0xD80: "Cortex-A520",
        0xD81: "Cortex-A720",
        0xD82: "Cortex-X4",
        0xD83: "Neoverse-V3AE",
        0xD84: "Neoverse-V3",
        0xD85: "Cortex-X925",
        0xD87: "Cortex-A725",
        0xD89: "Cortex-A720AE",
        0xD8B: "C1-Pro",
        0xD8C: "C1-Ultra",
        0xD8E: "Neoverse-N3",
        0xD90: "C1-Premium",
    },
    0x43: {0x0A1: "ThunderX", 0x0AF: "ThunderX2"},
    0x46: {0x001: "A64FX"},
    0x48: {0xD01: "Kunpeng 920 (TSV110)"},
    0x4E: {0x004: "Carmel", 0x010: "Olympus"},
    0x51: {0x001: "Oryon"},
    0x61: {
        0x022: "Icestorm (M1)",
        0x023: "Firestorm (M1)",
        0x024: "Icestorm (M1 Pro)",
        0x025: "Firestorm (M1 Pro)",
        0x028: "Icestorm (M1 Max)",
        0x029: "Firestorm (M1 Max)",
        0x032: "Blizzard (M2)",
        0x033: "Avalanche (M2)",
    },
    0x6D: {0xD49: "Cobalt 100 (Neoverse-N2)"},
    0xC0: {0xAC3: "Ampere-1", 0xAC4: "Ampere-1a"},
}
ARM_VENDORS = {
    0x41: "Arm",
    0x43: "Cavium",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}


def microarchitecture(vendor: str, family: int, model: int, stepping: int | None = None) -> str | None:
    """Name of the core design of an x86 processor, or ``None`` if this table does not know it."""
    if vendor == "GenuineIntel":
        return _intel_name(family, model, stepping)
    return _amd_name(family, model) if vendor in ("AuthenticAMD", "HygonGenuine") else None


def arm_microarchitecture(implementer: int, part: int) -> str | None:
    """Name of the core design of an Arm processor, by the fields of its MIDR."""
    return ARM_DESIGNS.get(implementer, {}).get(part)


def _intel_name(family: int, model: int, stepping: int | None) -> str | None:
    if (family, model) == (6, 0x55) and stepping is not None and stepping >= 5:
        return "Cascade Lake" if stepping < 10 else "Cooper Lake"
    return INTEL_DESIGNS.get((family, model))


def _amd_name(family: int, model: int) -> str | None:
    if family == 0x17 and model in ZEN_PLUS:
        return "Zen+"
    listed, groups, others = AMD_DESIGNS.get(family, (None, (), None))
    return listed if model >> 4 in groups else others
