/*
 * Caches: levels that are looked up one after the other, by physical line. A first level whose index lies
 * within the page is indexed by virtual address just as well: the bits are the same.
 *
 * A miss fills every level that it passed. Left out: write-back, prefetching, exclusive and inclusive levels.
 * Latency is that of the level that hits, from load to use, and not a sum.
 */
#include "simulated/parts.h"

static inline uint64_t key_of(uint64_t line)
{
    return line | UINT64_C(1) << 63;
}

struct tlb_fetch tlb_cache_fetch(struct tlb_model *model, int what, unsigned from, uint64_t physical)
{
    const struct tlb_caches *const caches = &model->caches[what == TLB_CODE ? TLB_CODE : TLB_DATA];
    struct tlb_fetch fetch = {.latency = model->memory_latency};
    uint64_t place = TLB_NOWHERE;
    unsigned level = from, reached = TLB_MODEL_CACHES;
    for (; level < caches->count; level++) {
        struct tlb_cache *const cache = caches->level[level];
        uint64_t const line = physical >> cache->shift;
        place = tlb_sets_find(&cache->lines, line, key_of(line));
        if (place == TLB_NOWHERE)
            continue;
        fetch.latency = cache->latency;
        reached = caches->place[level];
        break;
    }
    model->counters.cache_hits[what][reached]++;
    fetch.first = level == from && level < caches->count;
    while (level-- > from) {
        struct tlb_cache *const cache = caches->level[level];
        uint64_t const line = physical >> cache->shift;
        place = tlb_sets_put(&cache->lines, line, key_of(line));
    }
    if (place != TLB_NOWHERE && caches->level[from]->lines.ready)
        fetch.ready = &caches->level[from]->lines.ready[place];
    return fetch;
}
