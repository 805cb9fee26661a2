/*
 * Overlap: when each access begins and ends, as in a processor that runs ahead of what it waits for.
 *
 * An access enters in order, one interval after the last one and once the one a window before it has retired;
 * waits for the load of the pointer that leads to it, for its translation and, if it misses the first cache,
 * for a slot; and retires in order. A store retires when it is translated and waits for its line in a buffer;
 * a prefetch when it has its slot. Which load an access waits for is told by values: the program loads from
 * where a loaded value pointed to, exactly or within the line. That is right for kernels, whose chains are of pointers. What follows loaded
 * numbers instead is taken to have known them early. A window is in accesses, where hardware's is in
 * instructions.
 *
 * Source of the idea: interval and window models of out-of-order cores (T. S. Karkhanis, J. E. Smith, A
 * first-order superscalar processor model, ISCA 2004). Left out: instructions between accesses, wrong
 * predictions, forwarding from stores, ports, order of stores.
 */
#include "simulated/parts.h"

#include "random.h"

enum { LINE_SHIFT = 6 /* objects are aligned to 64 bytes where they have fields besides a pointer */ };

static inline uint64_t later(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static inline uint64_t ring_oldest(const struct tlb_ring *ring)
{
    return ring->time[ring->at];
}

static inline void ring_put(struct tlb_ring *ring, uint64_t time)
{
    ring->time[ring->at] = time;
    ring->at = ring->at + 1 == ring->count ? 0 : ring->at + 1;
}

/* -- What an access waits for ------------------------------------------------------------------ */

static inline unsigned recent_set(uint64_t pointer)
{
    return (unsigned)((pointer >> LINE_SHIFT) * UINT64_C(0x9e3779b97f4a7c15) >> 57);
}

static inline void remember_pointer(struct tlb_pipeline *pipeline, uint64_t pointer, uint64_t done)
{
    struct tlb_recent *const recent = &pipeline->recent[recent_set(pointer)];
    unsigned const way = recent->turn++ % TLB_RECENT_WAYS;
    recent->pointer[way] = pointer;
    recent->done[way] = done;
}

/* When the last pointer to the word had come, or else one into its line: several chains may have nodes in one
 * line. Without branches, which would be predicted wrongly. */
static inline uint64_t address_known(const struct tlb_pipeline *pipeline, uint64_t address)
{
    const struct tlb_recent *const recent = &pipeline->recent[recent_set(address)];
    uint64_t word = 0, line = 0;
    for (unsigned way = 0; way < TLB_RECENT_WAYS; way++) {
        uint64_t const apart = recent->pointer[way] ^ address, done = recent->done[way];
        word = later(word, apart == 0 ? done : 0);
        line = later(line, apart >> LINE_SHIFT == 0 ? done : 0);
    }
    return word ? word : line;
}

/* -- Steps of an access ------------------------------------------------------------------------ */

static inline uint64_t enter(struct tlb_model *model, uint64_t interval, uint64_t room)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    uint64_t const next = pipeline->front + tlb_noise_interval(&model->time, interval);
    pipeline->front = later(next, room);
    if (pipeline->front >= model->time.next)
        tlb_noise_settle(model, pipeline->front);
    return pipeline->front;
}

static inline void retire(struct tlb_pipeline *pipeline, uint64_t when)
{
    pipeline->retired = later(pipeline->retired, when);
    ring_put(&pipeline->window, pipeline->retired);
}

struct arrival {
    uint64_t slot; /* when it needed nothing more that others may hold */
    uint64_t done;
};

/* The line of a byte, from when its translation is there. */
static inline struct arrival bring(struct tlb_model *model, uint64_t address, uint64_t start)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    struct tlb_fetch const fetch = tlb_cache_fetch(model, TLB_DATA, 0, tlb_walk_physical(model, address));
    uint64_t const latency = tlb_noise_latency(&model->time, fetch.latency);
    struct arrival arrival = {start, start + latency};
    if (fetch.first) {
        if (fetch.ready)
            arrival.done = later(arrival.done, *fetch.ready);
    } else {
        uint64_t *const slot = tlb_slots_take(&pipeline->misses, start);
        arrival.slot = later(start, *slot);
        *slot = arrival.done = arrival.slot + latency;
        if (fetch.ready)
            *fetch.ready = arrival.done;
    }
    pipeline->done = later(pipeline->done, arrival.done);
    return arrival;
}

static inline bool is_outside(const struct tlb_model *model, uint64_t address)
{
    return address - model->base >= model->size;
}

/* Enters, and waits for its address and its translation. */
static inline uint64_t begin(struct tlb_model *model, uint64_t address, uint64_t room)
{
    uint64_t const entered = enter(model, model->pipeline.interval, room);
    uint64_t const known = later(entered, address_known(&model->pipeline, address));
    return tlb_walk_translate(model, TLB_DATA, address, known);
}

/* -- Accesses ---------------------------------------------------------------------------------- */

void tlb_model_load(struct tlb_model *model, uint64_t address, uint64_t value)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    if (is_outside(model, address))
        return;
    model->counters.loads++;
    address += model->moved;
    uint64_t const start = begin(model, address, ring_oldest(&pipeline->window));
    struct arrival const arrival = bring(model, address, start);
    if (!is_outside(model, value))
        remember_pointer(pipeline, value + model->moved, arrival.done);
    retire(pipeline, arrival.done);
}

void tlb_model_store(struct tlb_model *model, uint64_t address)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    if (is_outside(model, address))
        return;
    model->counters.stores++;
    address += model->moved;
    uint64_t const room = later(ring_oldest(&pipeline->window), ring_oldest(&pipeline->stores));
    uint64_t const start = begin(model, address, room);
    ring_put(&pipeline->stores, bring(model, address, start).done);
    retire(pipeline, start);
}

void tlb_model_prefetch(struct tlb_model *model, uint64_t address)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    if (is_outside(model, address))
        return;
    model->counters.prefetches++;
    address += model->moved;
    uint64_t const start = begin(model, address, ring_oldest(&pipeline->window));
    retire(pipeline, bring(model, address, start).slot);
}

/* Fetched in order, each after the one that is so many jumps ahead of it. */
void tlb_model_jump(struct tlb_model *model, uint64_t address)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    if (is_outside(model, address))
        return;
    model->counters.jumps++;
    address += model->moved;
    uint64_t const entered = enter(model, pipeline->jump_interval, ring_oldest(&pipeline->ahead));
    uint64_t const start = tlb_walk_translate(model, TLB_CODE, address, entered);
    struct tlb_fetch const fetch = tlb_cache_fetch(model, TLB_CODE, 0, tlb_walk_physical(model, address));
    uint64_t done = start + tlb_noise_latency(&model->time, fetch.latency);
    if (fetch.ready)
        done = *fetch.ready = later(done, *fetch.ready);
    ring_put(&pipeline->ahead, done);
    pipeline->done = later(pipeline->done, done);
}

uint64_t tlb_pipeline_end(struct tlb_model *model)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    uint64_t const end = later(pipeline->front, later(pipeline->retired, pipeline->done));
    pipeline->front = end;
    tlb_noise_settle(model, end);
    return end;
}
