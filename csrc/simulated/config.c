/*
 * What a configuration must be. The first thing that is wrong is told by its place and its name, as in
 * "tlb[1].arrays[0].sets.ways: ..."; a configuration that passes can be built.
 */
#include "simulated/parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

struct check {
    char *text;
    char where[64];
    int status;
};

__attribute__((format(printf, 4, 5))) static void require(struct check *check, bool holds, const char *name,
                                                          const char *must, ...)
{
    if (holds || check->status < 0)
        return;
    va_list list;
    va_start(list, must);
    int const length = snprintf(check->text, TLB_MODEL_TEXT, "%s%s: must be ", check->where, name);
    if (length > 0 && length < TLB_MODEL_TEXT)
        (void)vsnprintf(check->text + length, TLB_MODEL_TEXT - (size_t)length, must, list);
    va_end(list);
    check->status = -EINVAL;
}

__attribute__((format(printf, 2, 3))) static void look_at(struct check *check, const char *where, ...)
{
    va_list list;
    va_start(list, where);
    (void)vsnprintf(check->where, sizeof(check->where), where, list);
    va_end(list);
}

/* -- Numbers: a NaN fails every one of these. -------------------------------------------------- */

static bool is_whole(double number)
{
    return number >= 0 && number <= 0x1p53 && number == (double)(uint64_t)number;
}

static bool is_power(double number)
{
    return is_whole(number) && number >= 1 && ((uint64_t)number & ((uint64_t)number - 1)) == 0;
}

static void whole(struct check *check, double number, double least, double most, const char *name)
{
    require(check, is_whole(number) && number >= least && number <= most, name,
            "a whole number, %.0f to %.0f", least, most);
}

static void real(struct check *check, double number, double least, double most, const char *name)
{
    require(check, number >= least && number <= most, name, "%g to %g", least, most);
}

/* -- Parts ------------------------------------------------------------------------------------- */

static void check_sets(struct check *check, const struct tlb_model_sets *sets)
{
    double const ways = sets->ways > 0 ? sets->ways : sets->entries;
    whole(check, sets->entries, 0, 1 << 26, "entries");
    whole(check, sets->ways, 0, 1 << 26, "ways");
    whole(check, sets->index, TLB_INDEX_PLAIN, TLB_INDEX_HASHED, "index");
    whole(check, sets->replacement, TLB_REPLACE_LRU, TLB_REPLACE_RANDOM, "replacement");
    if (check->status < 0 || sets->entries == 0)
        return;
    double const count = sets->entries / ways;
    require(check, is_whole(count) && count >= 1, "ways", "a divisor of the %.0f entries", sets->entries);
    require(check, sets->index == TLB_INDEX_PLAIN || is_power(count), "index",
            "plain, as %.0f sets are no power of two", count);
    require(check, sets->replacement != TLB_REPLACE_PLRU || is_power(ways), "ways",
            "a power of two for tree-PLRU");
}

static void check_array(struct check *check, const struct tlb_model_array *array, double base_page)
{
    check_sets(check, &array->sets);
    require(check, array->sets.entries == 0 || array->pages[0] > 0, "pages", "one size or more");
    for (int i = 0; i < TLB_MODEL_PAGES && array->pages[i] != 0; i++)
        require(check, is_power(array->pages[i]) && array->pages[i] >= base_page, "pages",
                "powers of two of at least the base page");
}

static void check_tlbs(struct check *check, const struct tlb_model_config *config)
{
    for (int i = 0; i < TLB_MODEL_TLBS && config->tlb[i].side != 0; i++) {
        const struct tlb_model_tlb *const tlb = &config->tlb[i];
        look_at(check, "tlb[%d].", i);
        whole(check, tlb->side, TLB_SIDE_DATA, TLB_SIDE_BOTH, "side");
        real(check, tlb->cycles, 0, 1e6, "cycles");
        for (int j = 0; j < TLB_MODEL_ARRAYS; j++) {
            look_at(check, "tlb[%d].arrays[%d].", i, j);
            check_array(check, &tlb->arrays[j], config->base_page);
        }
    }
}

static void check_caches(struct check *check, const struct tlb_model_config *config)
{
    for (int i = 0; i < TLB_MODEL_CACHES && config->cache[i].side != 0; i++) {
        const struct tlb_model_cache *const cache = &config->cache[i];
        look_at(check, "cache[%d].", i);
        whole(check, cache->side, TLB_SIDE_DATA, TLB_SIDE_BOTH, "side");
        require(check, is_power(cache->line) && cache->line >= 16 && cache->line <= 4096, "line",
                "a power of two, 16 to 4096");
        real(check, cache->cycles, 0, 1e6, "cycles");
        require(check, check->status < 0 || (is_whole(cache->size / cache->line) && cache->size > 0), "size",
                "lines of %.0f bytes", cache->line);
        struct tlb_model_sets const sets = {cache->size / cache->line, cache->ways, cache->index,
                                            cache->replacement};
        if (check->status == 0)
            check_sets(check, &sets);
    }
}

static void check_walk(struct check *check, const struct tlb_model_config *config)
{
    const struct tlb_model_walk *const walk = &config->walk;
    look_at(check, "walk.");
    whole(check, walk->levels, 3, TLB_MODEL_LEVELS, "levels");
    whole(check, walk->walkers, 1, 64, "walkers");
    real(check, walk->cycles, 0, 1e6, "cycles");
    whole(check, walk->cache, 0, TLB_MODEL_CACHES, "cache");
    for (int i = 0; i < TLB_MODEL_LEVELS - 1; i++) {
        look_at(check, "walk.upper[%d].", i);
        check_sets(check, &walk->upper[i]);
    }
}

static void check_overlap(struct check *check, const struct tlb_model_overlap *overlap)
{
    look_at(check, "overlap.");
    whole(check, overlap->window, 1, 4096, "window");
    whole(check, overlap->misses, 1, 256, "misses");
    whole(check, overlap->stores, 1, 4096, "stores");
    real(check, overlap->cycles, 1.0 / TLB_TICKS, 1e6, "cycles");
    whole(check, overlap->ahead, 1, 4096, "ahead");
    real(check, overlap->jump_cycles, 1.0 / TLB_TICKS, 1e6, "jump_cycles");
}

/* -- Disturbance ------------------------------------------------------------------------------- */

static void check_bursts(struct check *check, const struct tlb_model_config *config)
{
    for (int i = 0; i < TLB_MODEL_BURSTS; i++) {
        const struct tlb_model_burst *const burst = &config->burst[i];
        look_at(check, "burst[%d].", i);
        real(check, burst->rate, 0, 1e6, "rate");
        if (burst->rate == 0)
            continue;
        real(check, burst->least_ms, 1e-3, 1e6, "least_ms");
        real(check, burst->most_ms, burst->least_ms, 1e6, "most_ms");
        real(check, burst->factor, 1, 1e6, "factor");
        real(check, burst->added_ns, 0, 1e6, "added_ns");
        real(check, burst->stolen, 0, 0.999, "stolen");
    }
}

static unsigned count_tlbs(const struct tlb_model_config *config)
{
    unsigned levels = 0;
    while (levels < TLB_MODEL_TLBS && config->tlb[levels].side != 0)
        levels++;
    return levels;
}

static unsigned count_caches(const struct tlb_model_config *config)
{
    unsigned levels = 0;
    while (levels < TLB_MODEL_CACHES && config->cache[levels].side != 0)
        levels++;
    return levels;
}

static void check_neighbours(struct check *check, const struct tlb_model_config *config)
{
    for (int i = 0; i < TLB_MODEL_NEIGHBOURS; i++) {
        const struct tlb_model_neighbour *const neighbour = &config->neighbour[i];
        look_at(check, "neighbour[%d].", i);
        real(check, neighbour->cycles, 0, 1e15, "cycles");
        if (neighbour->cycles == 0)
            continue;
        real(check, neighbour->cycles, 1, 1e15, "cycles");
        whole(check, neighbour->cache, 0, 1, "cache");
        double const levels = neighbour->cache > 0 ? count_caches(config) : count_tlbs(config);
        require(check, is_whole(neighbour->level) && neighbour->level < levels, "level",
                "one of its %.0f levels", levels);
    }
}

static void check_noise(struct check *check, const struct tlb_model_config *config)
{
    check_bursts(check, config);
    look_at(check, "drift.");
    real(check, config->drift.amplitude, 0, 1e3, "amplitude");
    if (config->drift.amplitude > 0)
        real(check, config->drift.memory_ms, 1e-2, 1e6, "memory_ms");
    look_at(check, "steps.");
    real(check, config->steps.every_ms, 0, 1e6, "every_ms");
    if (config->steps.every_ms > 0) {
        real(check, config->steps.every_ms, 1e-2, 1e6, "every_ms");
        real(check, config->steps.factor, 1e-3, 1, "factor");
    }
    check_neighbours(check, config);
}

int tlb_config_check(const struct tlb_model_config *config, char text[TLB_MODEL_TEXT])
{
    struct check check = {.text = text};
    real(&check, config->ghz, 0.01, 100, "ghz");
    real(&check, config->clock_ns, 0, 1e6, "clock_ns");
    whole(&check, config->clock_step_ns, 1, 1e6, "clock_step_ns");
    whole(&check, config->seed, 0, 0x1p53 - 1, "seed");
    require(&check, is_power(config->base_page) && config->base_page >= 4096 && config->base_page <= 65536,
            "base_page", "4096, 8192, 16384, 32768 or 65536");
    whole(&check, config->contiguous, 0, 1, "contiguous");
    real(&check, config->memory_cycles, 0, 1e6, "memory_cycles");
    check_overlap(&check, &config->overlap);
    check_walk(&check, config);
    check_tlbs(&check, config);
    check_caches(&check, config);
    check_noise(&check, config);
    return check.status;
}
