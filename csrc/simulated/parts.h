/* The parts of the model, for its own files. Times are ticks, so that fractions of a cycle add up exactly. */
#ifndef TLB_PARTS_H
#define TLB_PARTS_H

#include "simulated/model.h"
#include "simulated/sets.h"

enum { TLB_TICKS = 1024 /* a core cycle */ };

enum { TLB_DATA, TLB_CODE, TLB_TABLES, TLB_SIDES = 2 };

#define TLB_NEVER UINT64_MAX

struct tlb_slots {   /* of which one can do a thing at a time */
    uint64_t *until; /* when each is free */
    unsigned count, at;
};

/* One that is free at a time, or else the first that will be: until when, to be set. They are tried in turn,
 * as they mostly become free. */
static inline uint64_t *tlb_slots_take(struct tlb_slots *slots, uint64_t start)
{
    unsigned earliest = slots->at;
    for (unsigned i = 0, at = slots->at; i < slots->count && slots->until[earliest] > start; i++) {
        earliest = slots->until[at] < slots->until[earliest] ? at : earliest;
        at = at + 1 < slots->count ? at + 1 : 0;
    }
    slots->at = earliest + 1 < slots->count ? earliest + 1 : 0;
    return &slots->until[earliest];
}

/* -- Translation: walk.c ----------------------------------------------------------------------- */

struct tlb_level {
    struct tlb_sets arrays[TLB_MODEL_ARRAYS];
    /* By the shift of a page: the array that holds it, and the shift of what it takes an entry of. */
    struct tlb_sets *holder[64];
    uint8_t held[64];
    uint64_t latency;
};

struct tlb_levels { /* of one side, in order */
    struct tlb_level *level[TLB_MODEL_TLBS];
    unsigned place[TLB_MODEL_TLBS]; /* in the configuration */
    unsigned count;
};

struct tlb_walks {
    unsigned levels, base_shift, index_bits;
    struct tlb_sets upper[TLB_MODEL_LEVELS]; /* by level of the entry: 0 would be the lowest table's */
    uint64_t latency;
    unsigned cache;
    struct tlb_slots walkers;
    /* What was under way later than the time at which accesses begin now: apart from each other, ascending.
     */
    struct tlb_interval {
        uint64_t begin, end;
    } *active;
    unsigned actives;
    uint64_t pending_ticks, active_ticks;
};

/* When the translation is there. */
uint64_t tlb_walk_translate(struct tlb_model *model, int side, uint64_t address, uint64_t start);
uint64_t tlb_walk_physical(const struct tlb_model *model, uint64_t address);

/* -- Caches: cache.c --------------------------------------------------------------------------- */

struct tlb_cache {
    struct tlb_sets lines;
    unsigned shift;
    uint64_t latency;
};

struct tlb_caches { /* of one side, in order */
    struct tlb_cache *level[TLB_MODEL_CACHES];
    unsigned place[TLB_MODEL_CACHES];
    unsigned count;
};

struct tlb_fetch {
    uint64_t latency;
    uint64_t *ready; /* of the line in the first level; NULL: that keeps no times */
    bool first;      /* it was there */
};

/* Brings a line into all levels from `from` on. What: TLB_DATA, TLB_CODE or TLB_TABLES. */
struct tlb_fetch tlb_cache_fetch(struct tlb_model *model, int what, unsigned from, uint64_t physical);

/* -- Overlap: pipeline.c ----------------------------------------------------------------------- */

enum { TLB_RECENT_SETS = 128, TLB_RECENT_WAYS = 4 };

struct tlb_recent { /* pointers that were loaded, and when each had come */
    uint64_t pointer[TLB_RECENT_WAYS], done[TLB_RECENT_WAYS];
    unsigned turn;
};

struct tlb_ring { /* of times: the one `count` ago, which the newest replaces */
    uint64_t *time;
    unsigned count, at;
};

struct tlb_pipeline {
    uint64_t front;   /* when the last access began */
    uint64_t retired; /* when the last one of those so far retires */
    uint64_t done;    /* when all is done, stores and prefetches too */
    uint64_t interval, jump_interval;
    struct tlb_ring window, stores, ahead;
    struct tlb_slots misses;
    struct tlb_recent recent[TLB_RECENT_SETS];
};

uint64_t tlb_pipeline_end(struct tlb_model *model); /* when all that is in flight has ended: now */

/* -- Time: noise.c ----------------------------------------------------------------------------- */

struct tlb_burst {
    struct tlb_model_burst config;
    bool on;
    double at; /* ns of its next event */
};

struct tlb_neighbour {
    struct tlb_sets *sets[TLB_MODEL_ARRAYS];
    unsigned count;
    double interval, at; /* ns */
};

struct tlb_time {
    double ghz, ghz_now;
    double ns, cpu_ns; /* at tick `tick`; from there on so many a tick: */
    uint64_t tick;
    double ns_per_tick, cpu_per_tick;
    bool idle;
    uint64_t idle_ticks;
    uint64_t next; /* tick of the next event */
    double factor; /* of latencies and intervals */
    uint64_t added;
    bool disturbed; /* factor and added matter */
    uint64_t read;
    uint64_t step_ns;
    uint64_t random;
    struct tlb_burst bursts[TLB_MODEL_BURSTS];
    struct tlb_model_drift drift;
    double drift_x, drift_at;
    struct tlb_model_steps steps;
    double steps_at;
    bool slow;
    struct tlb_neighbour neighbours[TLB_MODEL_NEIGHBOURS];
    uint64_t foreign; /* keys that nobody else has */
};

void tlb_noise_begin(struct tlb_model *model, const struct tlb_model_config *config);
void tlb_noise_settle(struct tlb_model *model, uint64_t tick); /* does what happens up to a tick */

static inline uint64_t tlb_noise_interval(const struct tlb_time *time, uint64_t ticks)
{
    return time->disturbed ? (uint64_t)((double)ticks * time->factor) : ticks;
}

static inline uint64_t tlb_noise_latency(const struct tlb_time *time, uint64_t ticks)
{
    return time->disturbed ? (uint64_t)((double)ticks * time->factor) + time->added : ticks;
}

/* -- All of it --------------------------------------------------------------------------------- */

struct tlb_range {
    uint64_t base, size;
    uint64_t address; /* of the model's own */
    unsigned shift;   /* of its true pages */
};

struct tlb_model {
    /* Bytes of the run that is measured, none between runs; and what all of them have in common. */
    uint64_t base, size, moved; /* model's address less real one */
    unsigned shift;
    bool contiguous;
    uint64_t seed;
    struct tlb_pipeline pipeline;
    struct tlb_time time;
    struct tlb_levels tlbs[TLB_SIDES];
    struct tlb_caches caches[TLB_SIDES];
    struct tlb_walks walks;
    uint64_t memory_latency;
    struct tlb_model_counters counters;
    struct tlb_level level[TLB_MODEL_TLBS];
    struct tlb_cache cache[TLB_MODEL_CACHES];
    struct tlb_range *ranges;
    unsigned range_count, range_room;
    uint64_t next_address, end_address;
};

/* Says what is wrong: -EINVAL. */
int tlb_config_check(const struct tlb_model_config *config, char text[TLB_MODEL_TEXT]);

static inline uint64_t tlb_ticks_of(double cycles)
{
    return (uint64_t)(cycles * TLB_TICKS + 0.5);
}

#endif
