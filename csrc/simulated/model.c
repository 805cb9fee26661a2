/*
 * Making and freeing the model, the ranges that it knows, and its counters.
 *
 * A range gets an address of the model's own, on a boundary of 1 GiB or of its page, in the order of mapping:
 * sets and frames follow from it, so that a run comes out the same wherever the system puts its memory. What
 * was unmapped keeps its address until all are used up.
 */
#include "simulated/parts.h"

#include "random.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

static unsigned log2_of(double power)
{
    return (unsigned)__builtin_ctzll((uint64_t)power);
}

static bool is_on(double side, int code)
{
    return ((unsigned)side & (code ? TLB_SIDE_CODE : TLB_SIDE_DATA)) != 0;
}

/* Of its own random numbers, for each part. */
static uint64_t seed_of(const struct tlb_model *model, unsigned part, unsigned index)
{
    return tlb_mix(model->seed ^ tlb_mix((uint64_t)part << 32 | (index + 1)));
}

enum part { TLBS, CACHES, UPPER };

/* -- Rings and slots --------------------------------------------------------------------------- */

static int make_slots(struct tlb_slots *slots, double count)
{
    slots->count = (unsigned)count;
    slots->until = calloc(slots->count, sizeof(*slots->until));
    return slots->until ? 0 : -ENOMEM;
}

static int make_ring(struct tlb_ring *ring, double count)
{
    ring->count = (unsigned)count;
    ring->time = calloc(ring->count, sizeof(*ring->time));
    return ring->time ? 0 : -ENOMEM;
}

/* -- TLBs -------------------------------------------------------------------------------------- */

/* Which array a page of each size takes an entry of: its own, or that of the largest one below. */
static void choose_holders(struct tlb_level *level, const struct tlb_model_tlb *config)
{
    for (int i = 0; i < TLB_MODEL_ARRAYS; i++)
        for (int j = 0; j < TLB_MODEL_PAGES && level->arrays[i].sets && config->arrays[i].pages[j] > 0; j++) {
            unsigned const shift = log2_of(config->arrays[i].pages[j]);
            level->holder[shift] = &level->arrays[i];
            level->held[shift] = (uint8_t)shift;
        }
    for (unsigned shift = 1; shift < 64; shift++)
        if (!level->holder[shift]) {
            level->holder[shift] = level->holder[shift - 1];
            level->held[shift] = level->held[shift - 1];
        }
}

static int make_tlb(struct tlb_model *model, const struct tlb_model_tlb *config, unsigned place)
{
    struct tlb_level *const level = &model->level[place];
    bool first = false;
    level->latency = tlb_ticks_of(config->cycles);
    for (int side = 0; side < TLB_SIDES; side++)
        if (is_on(config->side, side)) {
            struct tlb_levels *const levels = &model->tlbs[side];
            first = first || levels->count == 0;
            levels->place[levels->count] = place;
            levels->level[levels->count++] = level;
        }
    int status = 0;
    for (unsigned i = 0; i < TLB_MODEL_ARRAYS && status == 0; i++)
        if (config->arrays[i].sets.entries > 0)
            status = tlb_sets_make(&level->arrays[i], &config->arrays[i].sets,
                                   seed_of(model, TLBS, TLB_MODEL_ARRAYS * place + i), first);
    choose_holders(level, config);
    return status;
}

static int make_tlbs(struct tlb_model *model, const struct tlb_model_config *config)
{
    int status = 0;
    for (unsigned i = 0; i < TLB_MODEL_TLBS && config->tlb[i].side > 0 && status == 0; i++)
        status = make_tlb(model, &config->tlb[i], i);
    return status;
}

/* -- Caches and walks -------------------------------------------------------------------------- */

static int make_cache(struct tlb_model *model, const struct tlb_model_cache *config, unsigned place)
{
    struct tlb_cache *const cache = &model->cache[place];
    struct tlb_model_sets const sets = {config->size / config->line, config->ways, config->index,
                                        config->replacement};
    bool first = false;
    cache->latency = tlb_ticks_of(config->cycles);
    cache->shift = log2_of(config->line);
    for (int side = 0; side < TLB_SIDES; side++)
        if (is_on(config->side, side)) {
            struct tlb_caches *const caches = &model->caches[side];
            first = first || caches->count == 0;
            caches->place[caches->count] = place;
            caches->level[caches->count++] = cache;
        }
    return tlb_sets_make(&cache->lines, &sets, seed_of(model, CACHES, place), first);
}

static int make_caches(struct tlb_model *model, const struct tlb_model_config *config)
{
    int status = 0;
    model->memory_latency = tlb_ticks_of(config->memory_cycles);
    for (unsigned i = 0; i < TLB_MODEL_CACHES && config->cache[i].side > 0 && status == 0; i++)
        status = make_cache(model, &config->cache[i], i);
    return status;
}

static int make_walks(struct tlb_model *model, const struct tlb_model_config *config)
{
    struct tlb_walks *const walks = &model->walks;
    walks->levels = (unsigned)config->walk.levels;
    walks->base_shift = log2_of(config->base_page);
    walks->index_bits = walks->base_shift - 3;
    walks->latency = tlb_ticks_of(config->walk.cycles);
    walks->cache = (unsigned)config->walk.cache;
    /* As many may be apart as accesses are under way. */
    double const most = config->overlap.window + config->overlap.ahead + 2;
    walks->active = calloc((size_t)most, sizeof(*walks->active));
    int status = walks->active ? make_slots(&walks->walkers, config->walk.walkers) : -ENOMEM;
    for (unsigned i = 0; i + 1 < walks->levels && status == 0; i++)
        if (config->walk.upper[i].entries > 0)
            status =
                tlb_sets_make(&walks->upper[i + 1], &config->walk.upper[i], seed_of(model, UPPER, i), false);
    return status;
}

/* -- The pipeline ------------------------------------------------------------------------------ */

static int make_pipeline(struct tlb_model *model, const struct tlb_model_overlap *config)
{
    struct tlb_pipeline *const pipeline = &model->pipeline;
    pipeline->interval = tlb_ticks_of(config->cycles);
    pipeline->jump_interval = tlb_ticks_of(config->jump_cycles);
    if (make_slots(&pipeline->misses, config->misses) < 0 ||
        make_ring(&pipeline->window, config->window) < 0 ||
        make_ring(&pipeline->stores, config->stores) < 0 || make_ring(&pipeline->ahead, config->ahead) < 0)
        return -ENOMEM;
    return 0;
}

/* -- All of it --------------------------------------------------------------------------------- */

static int make(struct tlb_model *model, const struct tlb_model_config *config)
{
    int status = make_tlbs(model, config);
    if (status == 0)
        status = make_caches(model, config);
    if (status == 0)
        status = make_walks(model, config);
    if (status == 0)
        status = make_pipeline(model, &config->overlap);
    if (status < 0)
        return status;
    unsigned const bits = model->walks.base_shift + model->walks.levels * model->walks.index_bits;
    model->next_address = GIB;
    model->end_address = UINT64_C(1) << (bits < 56 ? bits : 56);
    tlb_noise_begin(model, config);
    return 0;
}

int tlb_model_create(const struct tlb_model_config *config, struct tlb_model **made,
                     char text[TLB_MODEL_TEXT])
{
    *made = NULL;
    text[0] = 0;
    int status = tlb_config_check(config, text);
    if (status < 0)
        return status;
    struct tlb_model *const model = calloc(1, sizeof(*model));
    if (!model)
        return -ENOMEM;
    model->seed = tlb_mix((uint64_t)config->seed + 1);
    model->contiguous = config->contiguous > 0;
    status = make(model, config);
    if (status < 0)
        tlb_model_free(model);
    else
        *made = model;
    return status;
}

void tlb_model_free(struct tlb_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < TLB_MODEL_TLBS; i++)
        for (int j = 0; j < TLB_MODEL_ARRAYS; j++)
            tlb_sets_free(&model->level[i].arrays[j]);
    for (int i = 0; i < TLB_MODEL_CACHES; i++)
        tlb_sets_free(&model->cache[i].lines);
    for (int i = 0; i < TLB_MODEL_LEVELS; i++)
        tlb_sets_free(&model->walks.upper[i]);
    free(model->walks.walkers.until);
    free(model->walks.active);
    free(model->pipeline.misses.until);
    free(model->pipeline.window.time);
    free(model->pipeline.stores.time);
    free(model->pipeline.ahead.time);
    free(model->ranges);
    free(model);
}

/* -- Ranges ------------------------------------------------------------------------------------ */

static struct tlb_range *range_of(const struct tlb_model *model, uint64_t base, uint64_t size)
{
    for (unsigned i = 0; i < model->range_count; i++) {
        struct tlb_range *const range = &model->ranges[i];
        if (base - range->base < range->size && size <= range->size - (base - range->base))
            return range;
    }
    return NULL;
}

static bool overlaps(const struct tlb_model *model, uint64_t base, uint64_t size)
{
    for (unsigned i = 0; i < model->range_count; i++) {
        const struct tlb_range *const range = &model->ranges[i];
        if (base < range->base + range->size && range->base < base + size)
            return true;
    }
    return false;
}

static int make_room(struct tlb_model *model)
{
    if (model->range_count < model->range_room)
        return 0;
    unsigned const room = model->range_room ? 2 * model->range_room : 8;
    struct tlb_range *const ranges = realloc(model->ranges, room * sizeof(*ranges));
    if (!ranges)
        return -ENOMEM;
    model->ranges = ranges;
    model->range_room = room;
    return 0;
}

/* Addresses begin anew only when nothing is mapped: what TLBs hold of the first ones is long gone by then. */
static int take_addresses(struct tlb_model *model, uint64_t size, uint64_t align, uint64_t *address)
{
    if (model->range_count == 0 && model->end_address - model->next_address < size + 2 * align)
        model->next_address = GIB;
    uint64_t const begin = (model->next_address + align - 1) & -align;
    if (begin > model->end_address || size > model->end_address - begin)
        return -ENOSPC;
    *address = begin;
    model->next_address = begin + size;
    return 0;
}

static bool is_page(const struct tlb_model *model, uint64_t page)
{
    return page && (page & (page - 1)) == 0 && page >> model->walks.base_shift && page <= UINT64_C(1) << 40;
}

int tlb_model_map(struct tlb_model *model, uint64_t base, uint64_t size, uint64_t page, uint64_t true_page)
{
    if (!is_page(model, page) || !is_page(model, true_page) || size == 0 || size > model->end_address)
        return -EINVAL;
    if (overlaps(model, base, size))
        return -EEXIST;
    uint64_t const larger = page > true_page ? page : true_page;
    struct tlb_range range = {base, size, 0, (unsigned)__builtin_ctzll(true_page)};
    int status = make_room(model);
    if (status == 0)
        status = take_addresses(model, size, larger > GIB ? larger : GIB, &range.address);
    if (status == 0)
        model->ranges[model->range_count++] = range;
    return status;
}

int tlb_model_unmap(struct tlb_model *model, uint64_t base)
{
    for (unsigned i = 0; i < model->range_count; i++)
        if (model->ranges[i].base == base) {
            model->ranges[i] = model->ranges[--model->range_count];
            return 0;
        }
    return -ENOENT;
}

int tlb_model_enter(struct tlb_model *model, uint64_t base, uint64_t size)
{
    const struct tlb_range *const range = range_of(model, base, size);
    if (!range)
        return -EFAULT;
    model->base = base;
    model->size = size;
    model->moved = range->address - range->base;
    model->shift = range->shift;
    return 0;
}

void tlb_model_leave(struct tlb_model *model)
{
    model->size = 0;
}

/* -- Counters ---------------------------------------------------------------------------------- */

void tlb_model_count(struct tlb_model *model, struct tlb_model_counters *counters)
{
    uint64_t const end = tlb_pipeline_end(model);
    *counters = model->counters;
    counters->walk_pending = model->walks.pending_ticks / TLB_TICKS;
    counters->walk_active = model->walks.active_ticks / TLB_TICKS;
    counters->cycles = (end - model->time.idle_ticks) / TLB_TICKS;
}
