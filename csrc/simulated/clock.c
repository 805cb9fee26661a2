/*
 * The clocks of the core, by the model of this thread: in place of the file of the same name that asks the
 * system. Nothing here waits, and the same run takes the same time each time. Without a model all of them
 * stand at zero.
 *
 * CPU time is wall time less what was stolen and what was waited. There are no page faults, no switches, and
 * no clock that another one could drift from.
 */
#include "simulated/hooks.h"

uint64_t tlb_clock_ns(void)
{
    struct tlb_model *const model = tlb_hook_model();
    return model ? tlb_model_ns(model) : 0;
}

uint64_t tlb_clock_cpu_ns(void)
{
    struct tlb_model *const model = tlb_hook_model();
    return model ? tlb_model_cpu_ns(model) : 0;
}

struct tlb_usage tlb_clock_usage(void)
{
    return (struct tlb_usage){0};
}

void tlb_clock_wait(uint64_t ns)
{
    struct tlb_model *const model = tlb_hook_model();
    if (model)
        tlb_model_advance(model, ns);
}

/* The ticks are those of a counter of 1 GHz. */
void tlb_clock_moment(struct tlb_moment *moment)
{
    uint64_t const now = tlb_clock_ns();
    *moment = (struct tlb_moment){now, now, now};
}

void tlb_clock_calibrate(struct tlb_clock_cost *cost)
{
    enum { READS = 64 };
    uint64_t const start = tlb_clock_ns();
    uint64_t last = start;
    cost->step_ns = UINT64_MAX;
    for (int read = 0; read < READS; read++) {
        uint64_t const now = tlb_clock_ns();
        if (now > last && now - last < cost->step_ns)
            cost->step_ns = now - last;
        last = now;
    }
    cost->read_ns = (double)(last - start) / READS;
}

uint64_t tlb_clock_witness(void)
{
    struct tlb_model *const model = tlb_hook_model();
    uint64_t const start = tlb_clock_ns();
    if (model)
        tlb_model_compute(model, TLB_WITNESS_ADDS);
    return tlb_clock_ns() - start;
}
