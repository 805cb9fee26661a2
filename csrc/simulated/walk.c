/*
 * Translation: levels of TLBs, page-walk caches, and page tables that are nowhere.
 *
 * A page's frame, and a table's, is a hash of its number, so a table line has a physical address to be cached
 * by without a table in memory. A miss fills every level that missed. Page-walk caches are by level of the
 * entry and virtually indexed, as translation caches are in T. W. Barr, A. L. Cox, S. Rixner, Translation
 * caching, ISCA 2010. Left out: tables of tables (nested walks), accessed and dirty bits, walks that another
 * walk overtakes, speculative walks. Loads of tables take no slot of the misses in flight.
 */
#include "simulated/parts.h"

#include "random.h"

#include <string.h>

/* Table entries that map pages of 2^shift bytes are at this level; 0 is the lowest. Contiguous entries that
 * share a TLB entry are as many entries of their level. */
static unsigned leaf_level(const struct tlb_walks *walks, unsigned shift)
{
    unsigned const level = (shift - walks->base_shift) / walks->index_bits;
    return level < walks->levels ? level : walks->levels - 1;
}

/* -- Where things are in physical memory ------------------------------------------------------- */

enum { FRAME_BITS = 40 };

uint64_t tlb_walk_physical(const struct tlb_model *model, uint64_t address)
{
    if (model->contiguous)
        return address;
    uint64_t const frame = tlb_mix((address >> model->shift) ^ model->seed) >> (64 - FRAME_BITS);
    return frame << model->shift | (address & ((UINT64_C(1) << model->shift) - 1));
}

/* Tables of each level lie apart from those of others, and from the pages. */
static uint64_t entry_physical(const struct tlb_model *model, unsigned level, uint64_t entry)
{
    const struct tlb_walks *const walks = &model->walks;
    uint64_t const table = entry >> walks->index_bits,
                   index = entry & ((UINT64_C(1) << walks->index_bits) - 1);
    uint64_t const named = table | (uint64_t)(level + 1) << 58;
    uint64_t const frame = model->contiguous ? named & ((UINT64_C(1) << (58 - walks->base_shift)) - 1)
                                             : tlb_mix(named ^ model->seed) >> (64 - FRAME_BITS);
    uint64_t const apart = model->contiguous ? (uint64_t)(level + 1) << 58 : 0;
    return (frame << walks->base_shift | index * 8) + apart;
}

/* -- Counting the time that walks take --------------------------------------------------------- */

/* Those that ended before any new one can begin will not be added to. */
static void forget_ended(struct tlb_walks *walks, uint64_t front)
{
    unsigned ended = 0;
    while (ended < walks->actives && walks->active[ended].end < front)
        ended++;
    walks->actives -= ended;
    memmove(walks->active, walks->active + ended, walks->actives * sizeof(*walks->active));
}

/* Merges an interval with those that it touches. Walkers that are busy at once touch, so that few are apart.
 */
static void count_active(struct tlb_walks *walks, uint64_t begin, uint64_t end)
{
    unsigned first = 0, last;
    struct tlb_interval *const active = walks->active;
    while (first < walks->actives && active[first].end < begin)
        first++;
    walks->active_ticks += end - begin;
    struct tlb_interval merged = {begin, end};
    for (last = first; last < walks->actives && active[last].begin <= end; last++) {
        uint64_t const from = begin > active[last].begin ? begin : active[last].begin;
        uint64_t const to = end < active[last].end ? end : active[last].end;
        walks->active_ticks -= to - from;
        merged.begin = merged.begin < active[last].begin ? merged.begin : active[last].begin;
        merged.end = merged.end > active[last].end ? merged.end : active[last].end;
    }
    memmove(active + first + 1, active + last, (walks->actives - last) * sizeof(*active));
    active[first] = merged;
    walks->actives += 1 - (last - first);
}

/* -- Walks ------------------------------------------------------------------------------------- */

static inline uint64_t entry_number(const struct tlb_walks *walks, unsigned level, uint64_t address)
{
    return address >> (walks->base_shift + level * walks->index_bits);
}

/* The level of the lowest table whose place is known without a load: `levels` is the root's. */
static unsigned known_level(struct tlb_walks *walks, unsigned leaf, uint64_t address)
{
    for (unsigned level = leaf + 1; level < walks->levels; level++) {
        uint64_t const entry = entry_number(walks, level, address);
        if (walks->upper[level].sets && tlb_sets_find(&walks->upper[level], entry, entry + 1) != TLB_NOWHERE)
            return level;
    }
    return walks->levels;
}

static uint64_t load_tables(struct tlb_model *model, uint64_t address)
{
    struct tlb_walks *const walks = &model->walks;
    unsigned const leaf = leaf_level(walks, model->shift);
    uint64_t latency = 0;
    for (unsigned level = known_level(walks, leaf, address); level-- > leaf;) {
        uint64_t const entry = entry_number(walks, level, address);
        latency +=
            tlb_cache_fetch(model, TLB_TABLES, walks->cache, entry_physical(model, level, entry)).latency;
        model->counters.walk_loads++;
        if (level > leaf && walks->upper[level].sets)
            tlb_sets_put(&walks->upper[level], entry, entry + 1);
    }
    return latency;
}

static uint64_t walk(struct tlb_model *model, int side, uint64_t address, uint64_t start)
{
    struct tlb_walks *const walks = &model->walks;
    uint64_t *const until = tlb_slots_take(&walks->walkers, start);
    uint64_t const begin = *until > start ? *until : start;
    uint64_t const latency = tlb_noise_latency(&model->time, walks->latency + load_tables(model, address));
    *until = begin + latency;
    model->counters.walks[side]++;
    walks->pending_ticks += latency;
    forget_ended(walks, model->pipeline.front);
    count_active(walks, begin, *until);
    return *until;
}

/* -- TLBs -------------------------------------------------------------------------------------- */

static inline uint64_t key_of(uint64_t number, unsigned shift)
{
    return number << 6 | shift;
}

/* An entry of the first level may be on its way still: then it was found, but has to be waited for. */
static inline bool find(const struct tlb_level *level, const struct tlb_model *model, uint64_t address,
                        uint64_t *start)
{
    struct tlb_sets *const sets = level->holder[model->shift];
    if (!sets)
        return false;
    unsigned const held = level->held[model->shift];
    uint64_t const place = tlb_sets_find(sets, address >> held, key_of(address >> held, held));
    if (place == TLB_NOWHERE)
        return false;
    *start += level->latency;
    if (sets->ready && sets->ready[place] > *start)
        *start = sets->ready[place];
    return true;
}

static void put(const struct tlb_level *level, const struct tlb_model *model, uint64_t address,
                uint64_t ready)
{
    struct tlb_sets *const sets = level->holder[model->shift];
    if (!sets)
        return;
    unsigned const held = level->held[model->shift];
    uint64_t const place = tlb_sets_put(sets, address >> held, key_of(address >> held, held));
    if (sets->ready)
        sets->ready[place] = ready;
}

uint64_t tlb_walk_translate(struct tlb_model *model, int side, uint64_t address, uint64_t start)
{
    const struct tlb_levels *const levels = &model->tlbs[side];
    unsigned missed = 0;
    while (missed < levels->count && !find(levels->level[missed], model, address, &start))
        model->counters.tlb_misses[side][levels->place[missed++]]++;
    if (missed < levels->count)
        model->counters.tlb_hits[side][levels->place[missed]]++;
    else
        start = walk(model, side, address, start);
    while (missed-- > 0)
        put(levels->level[missed], model, address, start);
    return start;
}
