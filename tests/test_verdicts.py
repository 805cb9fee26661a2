"""Verdicts on programs: pure functions, from tables of figures; each rule fires where it should."""

import dataclasses
import itertools
import math

import pytest

from tlbprobe.programs import verdicts
from tlbprobe.programs.verdicts import BOUND, NOT_BOUND, UNDECIDED, Pair, judge_run, judge_trial

MIB = 1 << 20

NOTHING = {
    "wall_seconds": 10.0,
    "cpu_seconds": 9.9,
    "system_seconds": 0.1,
    "minor": 500,
    "peak_bytes": None,
    "huge_share": 0.0,
    "touched_bytes": None,
    "looks": 5,
    "reach_bytes": None,
    "guest": False,
    "counters": {},
}


def figures(**changes):
    return {**NOTHING, **changes}


def counted(**counters):
    return figures(counters=counters)


def test_without_figures_there_is_not_enough_evidence():
    verdict = judge_run(figures())
    assert (verdict.claim, verdict.confidence) == (UNDECIDED, "none")
    assert verdict.evidence == ()
    assert any("whatif" in text for text in verdict.missing)
    assert any("walk share" in text for text in verdict.missing)
    assert str(verdict) == UNDECIDED


@pytest.mark.parametrize(
    ("share", "guest", "claim", "confidence"),
    [
        (0.311, False, BOUND, "high"),  # the article's
        (0.311, True, BOUND, "medium"),
        (0.10, False, BOUND, "high"),
        (0.099, False, NOT_BOUND, "medium"),
        (0.02, False, NOT_BOUND, "medium"),
        (0.019, False, NOT_BOUND, "high"),
        (0.0, False, NOT_BOUND, "high"),
        (0.0, True, NOT_BOUND, "medium"),
    ],
)
def test_walk_share(share, guest, claim, confidence):
    verdict = judge_run({**counted(cycles=1e9, walk_active=share * 1e9), "guest": guest})
    assert (verdict.claim, verdict.confidence) == (claim, confidence)
    assert "upper bound" in verdict.evidence[0]
    assert f"{share:.1%}" in verdict.evidence[0]
    assert ("virtual machine" in verdict.evidence[0]) == guest
    assert verdict.missing == ()


@pytest.mark.parametrize("counters", [{"cycles": 1e9}, {"walk_active": 1e9}, {"cycles": 0, "walk_active": 0}])
def test_no_walk_share_without_both_counters(counters):
    assert judge_run(figures(counters=counters)).claim == UNDECIDED


# Counts of a healthy run and of an ill one, as in the article on a packet gateway.
HEALTHY = {"cycles": 4e9, "instructions": 4e9 * 1.80, "walks": 4.2e6}
ILL = {"cycles": 4e9, "instructions": 4e9 * 1.49, "walks": 27.8e6}


@pytest.mark.parametrize(
    ("changes", "fires"),
    [
        ({}, True),
        ({"cycles": 4.15e9}, True),
        ({"cycles": 4.4e9}, False),
        ({"cycles": 3.6e9}, False),
        ({"instructions": 7.0e9}, False),
        ({"instructions": 9e9}, False),
        ({"walks": 5e6}, False),
        ({"walks": 1e6}, False),
    ],
)
def test_the_signature_of_two_runs(changes, fires):
    verdict = judge_run(counted(**{**ILL, **changes}), counted(**HEALTHY))
    assert verdict.claim == (BOUND if fires else UNDECIDED)
    assert verdict.confidence == ("medium" if fires else "none")
    assert ("packet gateway" in verdict.evidence[0]) == fires
    assert "against the other run" in verdict.evidence[0]


def test_the_signature_is_by_the_second():
    """A run of twice the length has twice the counts, and is no different."""
    longer = {**counted(**{name: 2 * count for name, count in ILL.items()}), "wall_seconds": 20.0}
    assert judge_run(longer, counted(**HEALTHY)).claim == BOUND
    assert judge_run(counted(**HEALTHY), counted(**HEALTHY)).claim == UNDECIDED
    assert judge_run(counted(**HEALTHY), counted(**ILL)).claim == UNDECIDED, "that is the cure"


def test_the_signature_needs_all_counters_of_both():
    for missing in HEALTHY:
        less = {name: count for name, count in ILL.items() if name != missing}
        assert judge_run(counted(**less), counted(**HEALTHY)).evidence == ()
        assert judge_run(counted(**HEALTHY), counted(**less)).evidence == ()
    assert judge_run(counted(**ILL), None).evidence == ()


@pytest.mark.parametrize(
    ("changes", "claim", "confidence", "said"),
    [
        ({"cpu_seconds": 0.5}, NOT_BOUND, "high", "waits for something else"),
        ({"cpu_seconds": 1.0}, UNDECIDED, "none", ""),
        ({"touched_bytes": 8 * MIB, "reach_bytes": 12 * MIB}, NOT_BOUND, "medium", "all of it fits"),
        ({"touched_bytes": 8 * MIB, "reach_bytes": 12 * MIB, "looks": 2}, UNDECIDED, "none", "2 looks"),
        ({"touched_bytes": 90 * MIB, "reach_bytes": 12 * MIB}, UNDECIDED, "none", "7.5 times as much"),
        ({"touched_bytes": 8 * MIB}, UNDECIDED, "none", ""),
        ({"peak_bytes": 10 * MIB, "reach_bytes": 12 * MIB}, NOT_BOUND, "medium", "all of its memory"),
        ({"peak_bytes": 13 * MIB, "reach_bytes": 12 * MIB}, UNDECIDED, "none", ""),
        ({"system_seconds": 5.0, "minor": 99_000}, UNDECIDED, "none", "99,000 page faults"),
        ({"system_seconds": 5.0, "minor": 900}, UNDECIDED, "none", ""),
        ({"system_seconds": 0.5, "minor": 99_000}, UNDECIDED, "none", ""),
        ({"wall_seconds": 0.0}, UNDECIDED, "none", ""),
    ],
)
def test_rules_without_counters(changes, claim, confidence, said):
    verdict = judge_run(figures(**changes))
    assert (verdict.claim, verdict.confidence) == (claim, confidence)
    assert len(verdict.evidence) == bool(said)
    assert all(said in text for text in verdict.evidence)


def test_what_is_touched_beyond_reach_may_be_on_huge_pages():
    text = judge_run(figures(touched_bytes=90 * MIB, reach_bytes=12 * MIB, huge_share=0.9)).evidence[0]
    assert "90% of its memory is on huge pages" in text


def test_counters_come_first_and_contradiction_costs_confidence():
    fits = {"touched_bytes": MIB, "reach_bytes": 12 * MIB}
    verdict = judge_run({**counted(cycles=1e9, walk_active=4e8), **fits})
    assert (verdict.claim, verdict.confidence) == (BOUND, "low")
    assert len(verdict.evidence) == 2
    agreed = judge_run({**counted(cycles=1e9, walk_active=1e6), **fits})
    assert (agreed.claim, agreed.confidence) == (NOT_BOUND, "high")


def test_plain_values():
    verdict = judge_run(counted(cycles=1e9, walk_active=4e8))
    assert verdict.to_dict()["claim"] == BOUND
    assert set(verdict.to_dict()) == {"claim", "confidence", "evidence", "missing"}


def pair(wall, cpu=None, huge=64.0, reference=0.0, name="offered", spread=0.01):
    def times(ratio):
        return (ratio, None) if spread is None else (ratio, (ratio - spread, ratio + spread))

    return Pair(name, "as it is", huge * MIB, reference * MIB, 2 * MIB, times(wall), times(cpu or wall))


def judged(*pairs):
    return judge_trial({one.variant: one for one in pairs})


@pytest.mark.parametrize(
    ("one", "claim", "confidence"),
    [
        (pair(0.83), "huge pages help: 17.0% less time", "high"),
        (pair(1.2), "huge pages cost time: 20.0% more time", "high"),
        (pair(1.0), "huge pages make no difference: less than 2% of the time", "high"),
        (pair(0.985, spread=0.01), "huge pages help: 1.5% less time", "high"),
        (pair(0.99, spread=0.03), UNDECIDED, "none"),
        (pair(0.5, spread=None), UNDECIDED, "none"),
        (pair(math.nan, spread=None), UNDECIDED, "none"),
        # The program has them already: what it loses without.
        (pair(1.25, huge=0, reference=64, name="refused"), "huge pages help: 20.0% less time", "high"),
        (pair(0.8, huge=0, reference=64, name="refused"), "huge pages cost time: 25.0% more time", "high"),
    ],
)
def test_a_pair_that_differs_in_its_pages(one, claim, confidence):
    verdict = judged(one)
    assert (verdict.claim, verdict.confidence) == (claim, confidence)
    assert verdict.evidence == (str(one),)


def test_cpu_time_decides_where_wall_time_does_not():
    noisy = Pair("offered", "as it is", 64 * MIB, 0, 2 * MIB, (0.9, (0.7, 1.1)), (0.8, (0.78, 0.82)))
    verdict = judged(noisy)
    assert (verdict.claim, verdict.confidence) == ("huge pages help: 20.0% less CPU time", "medium")


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5])
def test_pairs_on_the_same_pages_decide_nothing(ratio):
    """Not even a large difference, which must then be chance."""
    verdict = judged(pair(ratio, huge=0))
    assert (verdict.claim, verdict.confidence) == (UNDECIDED, "none")
    assert "by chance alone" in verdict.evidence[-1]
    assert judged(pair(ratio, huge=65, reference=64)).claim == UNDECIDED, "less than one page"


def test_pairs_on_the_same_pages_show_what_chance_does():
    same = pair(1.1, huge=0, name="refused")
    assert judged(pair(0.95), same).confidence == "low"
    assert "by chance" in judged(pair(0.95), same).evidence[-1]
    assert judged(pair(0.5), same).confidence == "high"
    assert judged(pair(0.95), pair(1.01, huge=0, name="refused")).confidence == "high"


def test_pages_that_were_not_seen_are_not_none():
    def unseen(**changes):
        return dataclasses.replace(pair(0.5), **changes)

    for one in (unseen(huge=None), unseen(reference_huge=None), unseen(huge=None, reference_huge=None)):
        assert "its pages were not seen" in str(one)
        verdict = judged(one, pair(1.0, huge=0, name="refused"))
        assert (verdict.claim, verdict.confidence) == (UNDECIDED, "none")
        assert not any("by chance alone" in text for text in verdict.evidence)
        assert "not seen in every variant" in verdict.missing[0]
        known = judged(pair(0.95), unseen(huge=None, variant="refused", wall=(1.1, (1.09, 1.11))))
        assert known.confidence == "high", "what was not seen says nothing of chance"
    assert "no huge page" not in str(unseen(huge=None, reference_huge=None))


def test_no_variant_at_all():
    assert judge_trial({}).claim == UNDECIDED


def test_ratios_are_written_with_their_intervals():
    assert verdicts.ratio_text(0.5, (0.4, 0.6)) == "0.500 times (95 %: 0.400 to 0.600)"
    assert "too few rounds" in verdicts.ratio_text(0.5, None)


def test_every_claim_fits_its_confidence():
    """Nothing is claimed without evidence, and nothing undecided is sure."""
    shares = (None, 0.0, 0.05, 0.5)
    for share, cpu, touched in itertools.product(shares, (0.1, 9.9), (None, MIB, 90 * MIB)):
        counters = {} if share is None else {"cycles": 1e9, "walk_active": share * 1e9}
        verdict = judge_run(
            figures(counters=counters, cpu_seconds=cpu, touched_bytes=touched, reach_bytes=12 * MIB)
        )
        assert (verdict.claim == UNDECIDED) == (verdict.confidence == "none")
        assert verdict.claim == UNDECIDED or verdict.evidence


def test_times_too_short_for_the_clock():
    short = pair(math.nan, name="offered")
    assert "nan" not in str(short)
    assert "too short for the clock" in str(short)
    noise = dataclasses.replace(pair(1.0, huge=0, name="refused"), wall=(math.nan, None))
    verdict = judged(pair(0.9), noise, dataclasses.replace(noise, variant="advised", wall=(1.4, (1.3, 1.5))))
    assert "differ by 40.0%" in verdict.evidence[-1], "what is not known does not hide what is"
    assert verdict.confidence == "low"
