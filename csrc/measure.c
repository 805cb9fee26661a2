/*
 * The only clock, the only slice loop, and the core-clock witness.
 *
 * Disturbance on a shared machine only ever adds time, and one long window averages it in. So work is timed
 * in many short slices; two things that are compared take turns, slice by slice; and a register-only loop
 * between the rounds tells stolen time and the core's frequency, which the system does not tell.
 */
#include "tlbprobe.h"

#include <sys/resource.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t tlb_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_RAW);
}

/* Of several tries the one that took least: nothing came between its three readings. */
void tlb_clock_moment(struct tlb_moment *moment)
{
    uint64_t least = UINT64_MAX;
    for (int try = 0; try < 16; try++) {
        uint64_t const before = tlb_clock_ns();
        uint64_t const monotonic = read_clock(CLOCK_MONOTONIC), ticks = tlb_ticks();
        uint64_t const after = tlb_clock_ns();
        if (after - before < least) {
            least = after - before;
            *moment = (struct tlb_moment){before + least / 2, monotonic, ticks};
        }
    }
}

void tlb_clock_calibrate(struct tlb_clock_cost *cost)
{
    enum { ROUNDS = 32, READS = 64 };
    uint64_t least = UINT64_MAX;
    cost->step_ns = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t const start = tlb_clock_ns();
        uint64_t last = start;
        for (int read = 0; read < READS; read++) {
            uint64_t const now = tlb_clock_ns();
            if (now > last && now - last < cost->step_ns)
                cost->step_ns = now - last;
            last = now;
        }
        if (last - start < least)
            least = last - start;
    }
    cost->read_ns = (double)least / READS;
}

/* Dependent adds of registers, one core cycle each; the empty asm keeps the compiler from merging them. */
static uint64_t witness(void)
{
    uint64_t sum = 1, step = 3;
    uint64_t const start = tlb_clock_ns();
    for (int i = 0; i < TLB_WITNESS_ADDS; i += 16) {
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) {
            sum += step;
            __asm__ volatile("" : "+r"(sum), "+r"(step));
        }
    }
    return tlb_clock_ns() - start;
}

static struct rusage thread_usage(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_THREAD, &usage);
    return usage;
}

/* The CPU clock is read next to the wall clock, so that their difference is time taken away; counters are
 * read outside of both. */
static int take_slice(struct tlb_run *run, uint64_t accesses, struct tlb_slice *slice,
                      const struct tlb_counting *counting, uint64_t round, uint64_t *row)
{
    if (counting)
        tlb_counting_clear(counting, row);
    struct rusage const before = thread_usage();
    int const begun = counting ? tlb_counting_begin(counting, round, row) : 0;
    uint64_t const cpu_start = read_clock(CLOCK_THREAD_CPUTIME_ID);
    uint64_t const start = tlb_clock_ns();
    run->kernel->access(run, accesses);
    uint64_t const end = tlb_clock_ns();
    uint64_t const cpu_end = read_clock(CLOCK_THREAD_CPUTIME_ID);
    int const ended = counting ? tlb_counting_end(counting, round, row) : 0;
    struct rusage const after = thread_usage();
    *slice = (struct tlb_slice){.ns = end - start,
                                .cpu_ns = cpu_end - cpu_start,
                                .minor = (uint64_t)(after.ru_minflt - before.ru_minflt),
                                .major = (uint64_t)(after.ru_majflt - before.ru_majflt),
                                .switches = (uint64_t)(after.ru_nivcsw - before.ru_nivcsw)};
    return begun < 0 ? begun : ended;
}

static void warm(struct tlb_run *run, uint64_t accesses)
{
    run->kernel->access(run, run->lap < accesses ? run->lap : accesses);
}

static void do_nothing(struct tlb_run *run, uint64_t accesses)
{
    (void)run, (void)accesses;
}

/* Counts slices of nothing, some in every turn: what reading clocks and counters counts itself. */
static int find_cost(const struct tlb_counting *counting)
{
    enum { TRIES = 8 };
    static const struct tlb_kernel nothing = {.access = do_nothing};
    struct tlb_run run = {.kernel = &nothing};
    struct tlb_slice slice;
    int status = 0;
    for (uint64_t round = 0; round < TRIES * tlb_counting_turns(counting) && status == 0; round++) {
        status = tlb_counting_turn(counting, round);
        if (status == 0)
            status = take_slice(&run, 0, &slice, counting, round, counting->rows);
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
                      const struct tlb_counting *counting)
{
    size_t const width = counting ? tlb_counting_width(counting) : 0;
    int status = counting ? tlb_counting_turn(counting, k) : 0;
    for (size_t r = 0; r < work->count && status == 0; r++) {
        uint64_t const place = r * work->slices + k;
        uint64_t *const row = counting ? counting->rows + place * width : NULL;
        if (k == 0 || work->count > 1)
            warm(work->runs[r], work->accesses[r]);
        status = take_slice(work->runs[r], work->accesses[r], &out[place], counting, k, row);
        if (counting)
            tlb_counting_discount(counting, row);
    }
    return status;
}

int tlb_measure(struct tlb_run *const *runs, const uint64_t *accesses, size_t count, uint64_t slices,
                struct tlb_slice *out, uint64_t *witness_ns, const struct tlb_counting *counting,
                const struct tlb_poll *poll)
{
    struct work const work = {runs, accesses, count, slices};
    int status = counting ? find_cost(counting) : 0;
    for (uint64_t k = 0; k < slices && status == 0; k++) {
        status = tlb_ask(poll);
        witness_ns[k] = witness();
        if (status == 0)
            status = take_round(&work, k, out, counting);
    }
    witness_ns[slices] = witness();
    if (counting)
        tlb_counting_stop(counting);
    return status;
}
