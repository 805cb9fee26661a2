/*
 * The only clock: wall time, CPU time and what else the system counts of a thread, and the core-clock
 * witness.
 *
 * All that is timed is timed by these functions. So a clock that is only a model may stand in for this file,
 * and the kernels and whatever measures them stay as they are.
 */
#include "tlbprobe.h"

#include <sys/resource.h>
#include <time.h>

enum { NS = 1000 * 1000 * 1000 }; /* of a second */

static uint64_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

uint64_t tlb_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_RAW);
}

uint64_t tlb_clock_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

struct tlb_usage tlb_clock_usage(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_THREAD, &usage);
    return (struct tlb_usage){.minor = (uint64_t)usage.ru_minflt,
                              .major = (uint64_t)usage.ru_majflt,
                              .switches = (uint64_t)usage.ru_nivcsw};
}

void tlb_clock_wait(uint64_t ns)
{
    struct timespec const time = {.tv_sec = (time_t)(ns / NS), .tv_nsec = (long)(ns % NS)};
    nanosleep(&time, NULL);
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
uint64_t tlb_clock_witness(void)
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
