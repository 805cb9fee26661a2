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

/* The CPU clock is read next to the wall clock, so that their difference is time taken away. */
static void take_slice(struct tlb_run *run, uint64_t accesses, struct tlb_slice *slice)
{
    struct rusage const before = thread_usage();
    uint64_t const cpu_start = read_clock(CLOCK_THREAD_CPUTIME_ID);
    uint64_t const start = tlb_clock_ns();
    run->kernel->access(run, accesses);
    uint64_t const end = tlb_clock_ns();
    uint64_t const cpu_end = read_clock(CLOCK_THREAD_CPUTIME_ID);
    struct rusage const after = thread_usage();
    *slice = (struct tlb_slice){.ns = end - start,
                                .cpu_ns = cpu_end - cpu_start,
                                .minor = (uint64_t)(after.ru_minflt - before.ru_minflt),
                                .major = (uint64_t)(after.ru_majflt - before.ru_majflt),
                                .switches = (uint64_t)(after.ru_nivcsw - before.ru_nivcsw)};
}

static void warm(struct tlb_run *run, uint64_t accesses)
{
    run->kernel->access(run, run->lap < accesses ? run->lap : accesses);
}

int tlb_measure(struct tlb_run *const *runs, const uint64_t *accesses, size_t count, uint64_t slices,
                struct tlb_slice *out, uint64_t *witness_ns, const struct tlb_poll *poll)
{
    for (uint64_t k = 0; k < slices; k++) {
        int const status = tlb_ask(poll);
        if (status < 0)
            return status;
        witness_ns[k] = witness();
        for (size_t r = 0; r < count; r++) {
            if (k == 0 || count > 1)
                warm(runs[r], accesses[r]);
            take_slice(runs[r], accesses[r], &out[r * slices + k]);
        }
    }
    witness_ns[slices] = witness();
    return 0;
}
