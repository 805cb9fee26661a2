/*
 * The only slice loop.
 *
 * Disturbance on a shared machine only ever adds time, and one long window averages it in. So work is timed
 * in many short slices; two things that are compared take turns, slice by slice; and a register-only loop
 * between the rounds tells stolen time and the core's frequency, which the system does not tell.
 */
#include "tlbprobe.h"

/* The CPU clock is read next to the wall clock, so that their difference is time taken away; counters are
 * read outside of both. */
static int take_slice(struct tlb_run *run, uint64_t accesses, struct tlb_slice *slice,
                      const struct tlb_counting *counting, uint64_t round, uint64_t *row,
                      const struct tlb_poll *poll)
{
    if (counting)
        tlb_counting_clear(counting, row);
    struct tlb_usage const before = tlb_clock_usage();
    int const begun = counting ? tlb_counting_begin(counting, round, row) : 0;
    uint64_t const cpu_start = tlb_clock_cpu_ns();
    uint64_t const start = tlb_clock_ns();
    int const accessed = tlb_run_access(run, accesses, poll);
    uint64_t const end = tlb_clock_ns();
    uint64_t const cpu_end = tlb_clock_cpu_ns();
    int const ended = counting ? tlb_counting_end(counting, round, row) : 0;
    struct tlb_usage const after = tlb_clock_usage();
    *slice = (struct tlb_slice){.ns = end - start,
                                .cpu_ns = cpu_end - cpu_start,
                                .minor = after.minor - before.minor,
                                .major = after.major - before.major,
                                .switches = after.switches - before.switches};
    return accessed < 0 ? accessed : begun < 0 ? begun : ended;
}

static int warm(struct tlb_run *run, uint64_t accesses, const struct tlb_poll *poll)
{
    return tlb_run_access(run, run->lap < accesses ? run->lap : accesses, poll);
}

static void do_nothing(struct tlb_run *run, uint64_t accesses)
{
    (void)run, (void)accesses;
}

/* Counts slices of nothing, some in every turn: what reading clocks and counters counts itself. */
static int find_cost(const struct tlb_counting *counting, const struct tlb_poll *poll)
{
    enum { TRIES = 8 };
    static const struct tlb_kernel nothing = {.access = do_nothing};
    struct tlb_run run = {.kernel = &nothing};
    struct tlb_slice slice;
    int status = 0;
    for (uint64_t round = 0; round < TRIES * tlb_counting_turns(counting) && status == 0; round++) {
        status = tlb_counting_turn(counting, round);
        if (status == 0)
            status = take_slice(&run, 0, &slice, counting, round, counting->rows, poll);
        tlb_counting_learn(counting, counting->rows);
    }
    return status;
}

struct work {
    struct tlb_run *const *runs;
    const uint64_t *accesses;
    size_t count;
    uint64_t slices;
};

/* One slice of every run. */
static int take_round(const struct work *work, uint64_t k, struct tlb_slice *out,
                      const struct tlb_counting *counting, const struct tlb_poll *poll)
{
    size_t const width = counting ? tlb_counting_width(counting) : 0;
    int status = counting ? tlb_counting_turn(counting, k) : 0;
    for (size_t r = 0; r < work->count && status == 0; r++) {
        uint64_t const place = r * work->slices + k;
        uint64_t *const row = counting ? counting->rows + place * width : NULL;
        if (k == 0 || work->count > 1)
            status = warm(work->runs[r], work->accesses[r], poll);
        if (status == 0)
            status = take_slice(work->runs[r], work->accesses[r], &out[place], counting, k, row, poll);
        if (counting)
            tlb_counting_discount(counting, row);
    }
    return status;
}

int tlb_measure(struct tlb_run *const *runs, const uint64_t *accesses, size_t count, uint64_t slices,
                struct tlb_slice *out, uint64_t *witness, const struct tlb_counting *counting,
                const struct tlb_poll *poll)
{
    struct work const work = {runs, accesses, count, slices};
    int status = counting ? find_cost(counting, poll) : 0;
    for (uint64_t k = 0; k < slices && status == 0; k++) {
        status = tlb_ask(poll);
        witness[k] = tlb_clock_witness();
        if (status == 0)
            status = take_round(&work, k, out, counting, poll);
    }
    witness[slices] = tlb_clock_witness();
    if (counting)
        tlb_counting_stop(counting);
    return status;
}
