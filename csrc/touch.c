/*
 * Touches of pages, each with its own time: the clock is read once after every touch, so that the times add
 * up to the whole. Several share one time where a single one is faster than the clock can see.
 */
#include "tlbprobe.h"

#include <sched.h>
#include <time.h>

enum { CALIBRATION = 1024 };

TLB_UNSANITIZED static void touch_page(const struct tlb_touches *touches, uint64_t i)
{
    uint64_t const page = touches->order ? touches->order[i] : i;
    volatile char *const at = touches->base + page * touches->step;
    if (touches->write)
        *at = 1; /* not zero: zero pages may be reclaimed */
    else
        (void)*at;
}

TLB_UNSANITIZED static void touch_pages(const struct tlb_touches *touches, uint64_t first, uint64_t count,
                                        uint64_t *ns)
{
    uint64_t last = tlb_clock_ns();
    for (uint64_t i = first; i < first + count; i += touches->block) {
        for (uint64_t k = i; k < i + touches->block; k++)
            touch_page(touches, k);
        uint64_t const now = tlb_clock_ns();
        *ns++ = now - last;
        last = now;
    }
}

/* By Shell's method: qsort(3) may want a heap. */
uint64_t tlb_median(uint64_t *values, size_t count)
{
    for (size_t gap = count / 2; gap > 0; gap /= 2)
        for (size_t i = gap; i < count; i++) {
            uint64_t const value = values[i];
            size_t at = i;
            for (; at >= gap && values[at - gap] > value; at -= gap)
                values[at] = values[at - gap];
            values[at] = value;
        }
    return values[count / 2];
}

/* Touches a byte that is in the cache. The sleep is for what the kernel writes when it resumes a thread
 * (rseq), which a fork has made copy on write. */
uint64_t tlb_clock_overhead(void)
{
    char byte = 0;
    uint64_t ns[CALIBRATION];
    struct tlb_touches const touches = {.base = &byte, .write = true, .block = 1};
    nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    touch_pages(&touches, 0, CALIBRATION, ns);
    touch_pages(&touches, 0, CALIBRATION, ns);
    return tlb_median(ns, CALIBRATION);
}

void tlb_faults_begin(struct tlb_faults *faults)
{
    struct tlb_usage const usage = tlb_clock_usage();
    *faults = (struct tlb_faults){usage.minor, usage.major};
}

void tlb_faults_end(struct tlb_faults *faults)
{
    struct tlb_usage const usage = tlb_clock_usage();
    *faults = (struct tlb_faults){usage.minor - faults->minor, usage.major - faults->major};
}

/* -- Threads ------------------------------------------------------------------------------------------- */

struct worker {
    const struct tlb_touches *touches;
    _Atomic unsigned *ready; /* threads that wait for the others */
    struct tlb_thread thread;
    int cpu; /* to run on; -1: anywhere */
    uint64_t first, count;
    struct tlb_faults faults;
    uint64_t overhead_ns, begun, ended;
};

static void wait_for_others(_Atomic unsigned *ready, unsigned threads)
{
    atomic_fetch_add(ready, 1);
    while (atomic_load(ready) < threads)
        sched_yield(); /* there may be more threads than CPUs */
}

static void work(struct worker *worker)
{
    const struct tlb_touches *const touches = worker->touches;
    worker->overhead_ns = tlb_clock_overhead();
    if (worker->ready)
        wait_for_others(worker->ready, touches->threads);
    tlb_faults_begin(&worker->faults);
    worker->begun = tlb_clock_ns();
    touch_pages(touches, worker->first, worker->count, touches->ns + worker->first / touches->block);
    worker->ended = tlb_clock_ns();
    tlb_faults_end(&worker->faults);
}

static void work_in_thread(void *context)
{
    struct worker *const worker = context;
    (void)tlb_run_on(worker->cpu); /* or anywhere, if that CPU went meanwhile */
    work(worker);
}

static void sum_up(const struct worker *workers, unsigned count, struct tlb_touched *touched)
{
    uint64_t begun = UINT64_MAX, ended = 0;
    for (unsigned t = 0; t < count; t++) {
        touched->faults.minor += workers[t].faults.minor;
        touched->faults.major += workers[t].faults.major;
        touched->overhead_ns += workers[t].overhead_ns;
        begun = workers[t].begun < begun ? workers[t].begun : begun;
        ended = workers[t].ended > ended ? workers[t].ended : ended;
    }
    touched->overhead_ns /= count;
    touched->wall_ns = ended - begun;
}

/* Consecutive parts of whole blocks. */
static void share_out(const struct tlb_touches *touches, struct worker *workers)
{
    uint64_t const blocks = touches->count / touches->block, threads = touches->threads;
    for (unsigned t = 0; t < threads; t++) {
        uint64_t const first = blocks * t / threads, end = blocks * (t + 1) / threads;
        workers[t] = (struct worker){.touches = touches,
                                     .cpu = touches->cpus ? touches->cpus[t] : -1,
                                     .first = first * touches->block,
                                     .count = (end - first) * touches->block};
    }
}

/* Where a thread cannot be started, those that wait for it end with this process. */
static int work_together(struct worker *workers, unsigned threads)
{
    _Atomic unsigned ready = 0;
    for (unsigned t = 0; t < threads; t++) {
        workers[t].ready = &ready;
        workers[t].thread = (struct tlb_thread){.work = work_in_thread, .context = &workers[t]};
        int const status = tlb_thread_start(&workers[t].thread);
        if (status < 0)
            return status;
    }
    for (unsigned t = 0; t < threads; t++)
        tlb_thread_wait(&workers[t].thread);
    return 0;
}

int tlb_touch(const struct tlb_touches *touches, struct tlb_touched *touched)
{
    int status = 0;
    struct worker workers[TLB_THREADS];
    share_out(touches, workers);
    *touched = (struct tlb_touched){0};
    if (touches->threads == 1)
        work(&workers[0]);
    else
        status = work_together(workers, touches->threads);
    if (status == 0)
        sum_up(workers, touches->threads, touched);
    return status;
}
