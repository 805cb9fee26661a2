/*
 * What it costs to take pages away: the caller, who changes the page table and tells the other CPUs to
 * forget, and the threads of the same process that run there and are interrupted, whichever memory they use.
 *
 * The others read memory of their own in rounds, and time them. The caller numbers its calls, and waits after
 * each until every other thread has ended a round that began later, so that a long round belongs to one call.
 */
#include "tlbprobe.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ROUND_PAGES = 16, /* that another thread reads in a round: what it has to translate again shows */
    QUIET_ROUNDS = 1024,
    SPINS = 1 << 16, /* longer than a round takes by far */
    LINE = 128,      /* bytes that no two threads share */
};

struct other {
    _Alignas(LINE) struct tlb_thread thread;
    _Atomic uint64_t rounds; /* that it has ended */
    struct tlb_shootdown *shootdown;
    struct board *board;
    unsigned number;
    char *memory; /* ROUND_PAGES pages */
};

/* What the caller tells the others. */
struct board {
    _Alignas(LINE) _Atomic uint64_t call; /* the number of the call under way, from 0; before it: calls */
    _Atomic bool stop;
};

/* Reads a byte of each of its pages; the time of that. */
static uint64_t one_round(const struct other *other, uint64_t *last)
{
    uint64_t const page = other->shootdown->request.base_page;
    for (unsigned i = 0; i < ROUND_PAGES; i++)
        (void)*(volatile char *)(other->memory + i * page);
    uint64_t const now = tlb_clock_ns(), took = now - *last;
    *last = now;
    return took;
}

static uint64_t quiet_round(const struct other *other)
{
    uint64_t ns[QUIET_ROUNDS], last = tlb_clock_ns();
    for (unsigned i = 0; i < QUIET_ROUNDS; i++)
        ns[i] = one_round(other, &last);
    return tlb_median(ns, QUIET_ROUNDS);
}

static void go_on(void *context)
{
    struct other *const other = context;
    struct tlb_shootdown *const shootdown = other->shootdown;
    uint64_t *const longest = shootdown->others + other->number * shootdown->calls;
    (void)tlb_run_on(shootdown->cpus[1 + other->number]);
    shootdown->quiet_ns[other->number] = quiet_round(other);
    uint64_t last = tlb_clock_ns();
    while (!atomic_load_explicit(&other->board->stop, memory_order_relaxed)) {
        uint64_t const took = one_round(other, &last);
        uint64_t const call = atomic_load_explicit(&other->board->call, memory_order_acquire);
        if (call < shootdown->calls && took > longest[call])
            longest[call] = took;
        atomic_fetch_add_explicit(&other->rounds, 1, memory_order_release);
    }
}

/* Until each of the others has ended the round it is in, and one more. One that has been taken off its CPU
 * may be waiting for ours. */
static void wait_for_rounds(struct other *others, unsigned count)
{
    for (unsigned t = 0; t < count; t++) {
        uint64_t const now = atomic_load(&others[t].rounds);
        for (unsigned spins = 1; atomic_load_explicit(&others[t].rounds, memory_order_acquire) < now + 2;
             spins++)
            if (spins % SPINS == 0)
                sched_yield();
    }
}

static int take_away(const struct tlb_shootdown *shootdown, char *at)
{
    int status = 0;
    switch (shootdown->kind) {
    case TLB_UNMAP:
        status = munmap(at, shootdown->step);
        break;
    case TLB_PROTECT:
        status = mprotect(at, shootdown->step, PROT_READ);
        break;
    case TLB_DONTNEED:
        status = madvise(at, shootdown->step, MADV_DONTNEED);
        break;
    }
    return status < 0 ? -errno : 0;
}

static int make_calls(struct tlb_shootdown *shootdown, const struct tlb_region *region, struct board *board,
                      struct other *others)
{
    int status = 0;
    for (uint64_t call = 0; call < shootdown->calls && status == 0; call++) {
        wait_for_rounds(others, shootdown->threads);
        atomic_store_explicit(&board->call, call, memory_order_release);
        uint64_t const start = tlb_clock_ns();
        status = take_away(shootdown, region->base + call * shootdown->step);
        shootdown->ns[call] = tlb_clock_ns() - start;
        wait_for_rounds(others, shootdown->threads);
        atomic_store_explicit(&board->call, shootdown->calls, memory_order_release);
    }
    return status;
}

static int begin_others(struct tlb_shootdown *shootdown, struct board *board, struct other *others)
{
    uint64_t const size = ROUND_PAGES * shootdown->request.base_page;
    for (unsigned t = 0; t < shootdown->threads; t++) {
        char *const memory =
            mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (memory == MAP_FAILED)
            return -errno;
        others[t] = (struct other){.thread = {.work = go_on, .context = &others[t]},
                                   .shootdown = shootdown,
                                   .board = board,
                                   .number = t,
                                   .memory = memory};
        int const status = tlb_thread_start(&others[t].thread);
        if (status < 0)
            return status; /* those that run end with this process */
    }
    return 0;
}

static int failed(struct tlb_shootdown *shootdown, const char *step, int status)
{
    if (status < 0)
        shootdown->failed = step;
    return status;
}

static int map(struct tlb_shootdown *shootdown, struct tlb_region *region)
{
    uint64_t const start = tlb_clock_ns();
    int status = tlb_run_on(shootdown->cpus[0]);
    if (status == 0)
        status = tlb_region_map(region, &shootdown->request);
    if (status == 0 && shootdown->advice >= 0)
        status = tlb_region_advise(region, shootdown->advice);
    shootdown->map_ns = tlb_clock_ns() - start;
    return failed(shootdown, "mapping", status);
}

/* What is shared with a forked process is not in its page table: the first use of the records is a fault. */
static void touch_records(struct tlb_shootdown *shootdown)
{
    memset(shootdown->ns, 0, shootdown->calls * sizeof(*shootdown->ns));
    memset(shootdown->others, 0, shootdown->threads * shootdown->calls * sizeof(*shootdown->others));
    shootdown->overhead_ns = tlb_clock_overhead();
}

TLB_UNSANITIZED static void populate(struct tlb_shootdown *shootdown, const struct tlb_region *region)
{
    tlb_faults_begin(&shootdown->faults);
    uint64_t const start = tlb_clock_ns();
    for (uint64_t at = 0; at < region->size; at += region->base_page)
        *(volatile char *)(region->base + at) = 1;
    shootdown->populate_ns = tlb_clock_ns() - start;
    tlb_faults_end(&shootdown->faults);
    shootdown->scan_status = tlb_region_look(region, &shootdown->scan);
}

static int work(void *context)
{
    struct tlb_shootdown *const shootdown = context;
    struct board board = {.call = shootdown->calls};
    struct other others[TLB_THREADS];
    struct tlb_region region = {0};
    int status = map(shootdown, &region);
    if (status < 0)
        return status;
    touch_records(shootdown);
    populate(shootdown, &region);
    if ((status = begin_others(shootdown, &board, others)) < 0)
        return failed(shootdown, "starting threads", status);
    status = make_calls(shootdown, &region, &board, others);
    atomic_store(&board.stop, true);
    for (unsigned t = 0; t < shootdown->threads; t++)
        tlb_thread_wait(&others[t].thread);
    return failed(shootdown, "taking pages away", status);
}

int tlb_shootdown(struct tlb_shootdown *shootdown, const struct tlb_poll *poll)
{
    return tlb_in_child(work, shootdown, &shootdown->child, poll);
}
