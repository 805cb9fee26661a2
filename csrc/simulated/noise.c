/*
 * Time: ticks of the core clock as nanoseconds, and disturbance as processes on that time.
 *
 * Between two events a tick is so many nanoseconds of wall and of CPU time, so time is a sum of straight
 * pieces, and an access only compares its own time with that of the next event. Processes: bursts, in which
 * accesses are slower or the CPU is away; a slow drift; steps of the core clock; neighbours that take
 * entries. All random numbers come from the seed; none is drawn where nothing is configured.
 *
 * Left out: memory keeps its latency in cycles, not in nanoseconds, when the core clock steps; and a burst
 * changes nothing for accesses that have begun.
 */
#include "simulated/parts.h"

#include "random.h"

#define NEVER_NS 1e300

enum { DRIFT_STEPS = 16 /* in the memory of a drift */, LAPS_TAKEN = 8 };

/* -- Random numbers without a mathematical library, and so the same everywhere ----------------- */

static double uniform(struct tlb_time *time)
{
    return (double)(tlb_splitmix_next(&time->random) >> 11) * 0x1p-53;
}

static double uniform_between(struct tlb_time *time, double least, double most)
{
    return least + (most - least) * uniform(time);
}

/* Of mean 1: J. von Neumann, Various techniques used in connection with random digits (1951). */
static double exponential(struct tlb_time *time)
{
    for (double whole = 0;; whole++) {
        double const first = uniform(time);
        unsigned length = 1;
        for (double last = first, next; (next = uniform(time)) < last; last = next)
            length++;
        if (length % 2)
            return whole + first;
    }
}

/* The sum of twelve uniform numbers, which is normal as far as 3 of its deviations. */
static double normal(struct tlb_time *time)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(time);
    return sum;
}

/* -- Straight pieces of time ------------------------------------------------------------------- */

static void begin_piece(struct tlb_time *time, uint64_t tick)
{
    double const ticks = (double)(tick - time->tick);
    time->ns += ticks * time->ns_per_tick;
    time->cpu_ns += ticks * time->cpu_per_tick;
    time->tick = tick;
}

/* From the state of all processes: how fast time goes, and how slow accesses are. */
static void set_pace(struct tlb_time *time)
{
    double running = 1;
    double factor = 1 + time->drift.amplitude * (time->drift_x < 0 ? -time->drift_x : time->drift_x);
    double added = 0;
    for (int i = 0; i < TLB_MODEL_BURSTS; i++) {
        const struct tlb_burst *const burst = &time->bursts[i];
        if (!burst->on)
            continue;
        running *= 1 - burst->config.stolen;
        factor *= burst->config.factor;
        added += burst->config.added_ns;
    }
    time->ghz_now = time->slow ? time->ghz * time->steps.factor : time->ghz;
    double const ns_per_tick = 1 / (time->ghz_now * TLB_TICKS);
    time->ns_per_tick = time->idle ? 1 / (time->ghz * TLB_TICKS) : ns_per_tick / running;
    time->cpu_per_tick = time->idle ? 0 : ns_per_tick;
    time->factor = factor;
    time->added = tlb_ticks_of(added * time->ghz_now);
    time->disturbed = factor > 1 || time->added > 0;
}

static double next_event_ns(const struct tlb_time *time)
{
    double next = time->steps_at < time->drift_at ? time->steps_at : time->drift_at;
    for (int i = 0; i < TLB_MODEL_BURSTS; i++)
        next = time->bursts[i].at < next ? time->bursts[i].at : next;
    for (int i = 0; i < TLB_MODEL_NEIGHBOURS; i++)
        next = time->neighbours[i].at < next ? time->neighbours[i].at : next;
    return next;
}

static void schedule(struct tlb_time *time)
{
    double const next = next_event_ns(time);
    double const ticks = (next - time->ns) / time->ns_per_tick;
    if (next >= NEVER_NS)
        time->next = TLB_NEVER;
    else
        time->next = time->tick + (ticks > 0 ? (uint64_t)ticks + 1 : 0);
}

/* -- Processes: each does what is due and sets its next time ----------------------------------- */

static void do_burst(struct tlb_time *time, struct tlb_burst *burst)
{
    const struct tlb_model_burst *const config = &burst->config;
    burst->on = !burst->on;
    burst->at += burst->on ? 1e6 * uniform_between(time, config->least_ms, config->most_ms)
                           : 1e9 / config->rate * exponential(time);
}

/* x keeps a part 1 - 1/16 a step, and its variance of 1. */
static void do_drift(struct tlb_time *time)
{
    double const kept = 1 - 1.0 / DRIFT_STEPS, fresh = 0.34798527267687634; /* sqrt(1 - kept^2) */
    time->drift_x = kept * time->drift_x + fresh * normal(time);
    time->drift_at += 1e6 * time->drift.memory_ms / DRIFT_STEPS;
}

static void do_step(struct tlb_time *time)
{
    time->slow = !time->slow;
    time->steps_at += 1e6 * time->steps.every_ms * uniform_between(time, 0.5, 1.5);
}

static double entries_of(const struct tlb_neighbour *neighbour)
{
    double entries = 0;
    for (unsigned i = 0; i < neighbour->count; i++)
        entries += (double)(neighbour->sets[i]->sets * neighbour->sets[i]->ways);
    return entries;
}

/* After a long wait not all is made up for: what several laps have taken is gone. */
static void do_neighbour(struct tlb_time *time, struct tlb_neighbour *neighbour, double until)
{
    double const most = LAPS_TAKEN * entries_of(neighbour) * neighbour->interval;
    if (until - neighbour->at > most)
        neighbour->at = until - most;
    while (neighbour->at <= time->ns) {
        uint64_t const choice = tlb_scaled(tlb_splitmix_next(&time->random), neighbour->count);
        tlb_sets_take(neighbour->sets[choice], tlb_splitmix_next(&time->random),
                      UINT64_C(3) << 62 | ++time->foreign);
        neighbour->at += neighbour->interval;
    }
}

/* What is due now; neighbours look as far ahead as time will go. */
static void do_events(struct tlb_time *time, uint64_t tick)
{
    double const until = time->ns + (double)(tick - time->tick) * time->ns_per_tick;
    for (int i = 0; i < TLB_MODEL_BURSTS; i++)
        if (time->bursts[i].at <= time->ns)
            do_burst(time, &time->bursts[i]);
    for (int i = 0; i < TLB_MODEL_NEIGHBOURS; i++)
        if (time->neighbours[i].at <= time->ns)
            do_neighbour(time, &time->neighbours[i], until);
    if (time->drift_at <= time->ns)
        do_drift(time);
    if (time->steps_at <= time->ns)
        do_step(time);
}

void tlb_noise_settle(struct tlb_model *model, uint64_t tick)
{
    struct tlb_time *const time = &model->time;
    while (time->next <= tick) {
        begin_piece(time, time->next);
        do_events(time, tick);
        set_pace(time);
        schedule(time);
    }
}

/* -- Beginning --------------------------------------------------------------------------------- */

static void begin_neighbour(struct tlb_model *model, struct tlb_neighbour *neighbour,
                            const struct tlb_model_neighbour *config)
{
    unsigned const level = (unsigned)config->level;
    neighbour->at = NEVER_NS;
    if (config->cycles <= 0)
        return;
    neighbour->interval = neighbour->at = config->cycles / model->time.ghz;
    if (config->cache > 0)
        neighbour->sets[neighbour->count++] = &model->cache[level].lines;
    else
        for (int i = 0; i < TLB_MODEL_ARRAYS; i++)
            if (model->level[level].arrays[i].sets)
                neighbour->sets[neighbour->count++] = &model->level[level].arrays[i];
}

void tlb_noise_begin(struct tlb_model *model, const struct tlb_model_config *config)
{
    struct tlb_time *const time = &model->time;
    time->ghz = config->ghz;
    time->random = tlb_mix(model->seed ^ UINT64_C(0x6e6f697365));
    time->read = tlb_ticks_of(config->clock_ns * config->ghz);
    time->step_ns = (uint64_t)config->clock_step_ns;
    time->drift = config->drift;
    time->steps = config->steps;
    for (int i = 0; i < TLB_MODEL_BURSTS; i++) {
        struct tlb_burst *const burst = &time->bursts[i];
        burst->config = config->burst[i];
        burst->at = burst->config.rate > 0 ? 1e9 / burst->config.rate * exponential(time) : NEVER_NS;
    }
    time->drift_x = time->drift.amplitude > 0 ? normal(time) : 0;
    time->drift_at = time->drift.amplitude > 0 ? 1e6 * time->drift.memory_ms / DRIFT_STEPS : NEVER_NS;
    time->steps_at = time->steps.every_ms > 0 ? 1e6 * time->steps.every_ms * uniform(time) : NEVER_NS;
    for (int i = 0; i < TLB_MODEL_NEIGHBOURS; i++)
        begin_neighbour(model, &time->neighbours[i], &config->neighbour[i]);
    set_pace(time);
    schedule(time);
}

/* -- Reading and spending it ------------------------------------------------------------------- */

/* Reading takes ticks of work; then the time at the last of them. */
static void read_clock(struct tlb_model *model)
{
    struct tlb_time *const time = &model->time;
    uint64_t const now = tlb_pipeline_end(model) + time->read;
    model->pipeline.front = now;
    tlb_noise_settle(model, now);
    begin_piece(time, now);
}

static uint64_t in_steps(const struct tlb_time *time, double ns)
{
    uint64_t const whole = (uint64_t)(ns + 1e-6); /* a sum of pieces may fall just short of a whole number */
    return whole - whole % time->step_ns;
}

uint64_t tlb_model_ns(struct tlb_model *model)
{
    read_clock(model);
    return in_steps(&model->time, model->time.ns);
}

uint64_t tlb_model_cpu_ns(struct tlb_model *model)
{
    read_clock(model);
    return in_steps(&model->time, model->time.cpu_ns);
}

double tlb_model_now(struct tlb_model *model)
{
    uint64_t const now = tlb_pipeline_end(model);
    return model->time.ns + (double)(now - model->time.tick) * model->time.ns_per_tick;
}

static void set_idle(struct tlb_model *model, bool idle)
{
    begin_piece(&model->time, model->pipeline.front);
    model->time.idle = idle;
    set_pace(&model->time);
    schedule(&model->time);
}

void tlb_model_advance(struct tlb_model *model, uint64_t ns)
{
    struct tlb_time *const time = &model->time;
    uint64_t const begin = tlb_pipeline_end(model);
    set_idle(model, true);
    uint64_t const end = begin + tlb_ticks_of((double)ns * time->ghz);
    time->idle_ticks += end - begin;
    tlb_noise_settle(model, end);
    model->pipeline.front = end;
    set_idle(model, false);
}

void tlb_model_compute(struct tlb_model *model, uint64_t cycles)
{
    model->pipeline.front = tlb_pipeline_end(model) + cycles * TLB_TICKS;
    tlb_noise_settle(model, model->pipeline.front);
}
