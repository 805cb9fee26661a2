/*
 * Sets of entries: plain, folded and hashed index; LRU, tree-PLRU and random replacement.
 *
 * Sets of few ways are scanned, and LRU keeps them in order of use: one or two lines of the host's cache
 * each, which is what lets a large simulated cache run fast. Sets of many ways, such as a fully associative
 * TLB, find keys by hash, and LRU links them. What is left out: invalid entries after the first filling,
 * since nothing but replacement takes an entry away.
 *
 * Tree-PLRU as in the literature (e.g. J. Handy, The Cache Memory Book): each node of a binary tree over the
 * ways points to the half that was not used last; the victim is where the nodes lead to.
 */
#include "simulated/sets.h"

#include "random.h"

#include <errno.h>
#include <stdlib.h>

/* -- Where a key belongs ----------------------------------------------------------------------------- */

static uint64_t fold(uint64_t number, unsigned bits)
{
    uint64_t folded = 0;
    for (; number; number >>= bits)
        folded ^= number;
    return folded;
}

static inline uint64_t set_of(const struct tlb_sets *sets, uint64_t number)
{
    if (sets->index == TLB_INDEX_FOLDED)
        number ^= number >> sets->bits;
    else if (sets->index == TLB_INDEX_HASHED)
        number = fold(number, sets->bits);
    return sets->power ? number & (sets->sets - 1) : number % sets->sets;
}

static inline uint32_t *bucket_of(const struct tlb_sets *sets, uint64_t key)
{
    return &sets->bucket[key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - sets->bucket_bits)];
}

/* -- Order of use ------------------------------------------------------------------------------------ */

/* Entry `from` of a scanned set becomes its first; those before it move down. */
static inline void move_up(uint64_t *entries, uint64_t from, uint64_t entry)
{
    for (; from > 0; from--)
        entries[from] = entries[from - 1];
    entries[0] = entry;
}

static inline void unlink_place(struct tlb_sets *sets, uint64_t set, uint32_t place)
{
    uint32_t const newer = sets->newer[place], older = sets->older[place];
    if (newer != UINT32_MAX)
        sets->older[newer] = older;
    else
        sets->newest[set] = older;
    if (older != UINT32_MAX)
        sets->newer[older] = newer;
    else
        sets->oldest[set] = newer;
}

static inline void link_newest(struct tlb_sets *sets, uint64_t set, uint32_t place)
{
    uint32_t const second = sets->newest[set];
    sets->newer[place] = UINT32_MAX;
    sets->older[place] = second;
    if (second != UINT32_MAX)
        sets->newer[second] = place;
    else
        sets->oldest[set] = place;
    sets->newest[set] = place;
}

/* Node 1 is the root; below node n are 2n and 2n + 1. A bit of 1 points to the second half. */
static void point_away(struct tlb_sets *sets, uint64_t set, uint64_t way)
{
    uint64_t *const tree = sets->tree + set * sets->words;
    for (uint64_t node = way + sets->ways; node > 1; node /= 2) {
        uint64_t const parent = node / 2, bit = UINT64_C(1) << parent % 64;
        if (node % 2)
            tree[parent / 64] &= ~bit;
        else
            tree[parent / 64] |= bit;
    }
}

static uint64_t pointed_to(const struct tlb_sets *sets, uint64_t set)
{
    const uint64_t *const tree = sets->tree + set * sets->words;
    uint64_t node = 1;
    while (node < sets->ways)
        node = 2 * node + (tree[node / 64] >> node % 64 & 1);
    return node - sets->ways;
}

static inline void use(struct tlb_sets *sets, uint64_t set, uint64_t place)
{
    if (sets->replacement == TLB_REPLACE_PLRU) {
        point_away(sets, set, place - set * sets->ways);
    } else if (sets->replacement == TLB_REPLACE_LRU && sets->newest[set] != place) {
        unlink_place(sets, set, (uint32_t)place);
        link_newest(sets, set, (uint32_t)place);
    }
}

static uint64_t victim(struct tlb_sets *sets, uint64_t set)
{
    if (sets->replacement == TLB_REPLACE_LRU)
        return sets->oldest[set];
    if (sets->filled[set] < sets->ways)
        return set * sets->ways + sets->filled[set]++;
    if (sets->replacement == TLB_REPLACE_PLRU)
        return set * sets->ways + pointed_to(sets, set);
    return set * sets->ways + tlb_scaled(tlb_splitmix_next(&sets->random), sets->ways);
}

/* -- Finding and replacing --------------------------------------------------------------------------- */

static inline bool is_ordered(const struct tlb_sets *sets)
{
    return !sets->hashed && sets->replacement == TLB_REPLACE_LRU;
}

static uint64_t find_hashed(const struct tlb_sets *sets, uint64_t key)
{
    for (uint32_t place = *bucket_of(sets, key); place; place = sets->next[place - 1])
        if (sets->keys[place - 1] == key)
            return place - 1;
    return TLB_NOWHERE;
}

static uint64_t find_ordered(struct tlb_sets *sets, uint64_t first, uint64_t key)
{
    uint64_t *const keys = sets->keys + first;
    for (uint64_t way = 0; way < sets->ways; way++) {
        if (keys[way] != key)
            continue;
        move_up(keys, way, key);
        if (sets->ready)
            move_up(sets->ready + first, way, sets->ready[first + way]);
        return first;
    }
    return TLB_NOWHERE;
}

static uint64_t find_scanned(const struct tlb_sets *sets, uint64_t first, uint64_t key)
{
    for (uint64_t place = first; place < first + sets->ways; place++)
        if (sets->keys[place] == key)
            return place;
    return TLB_NOWHERE;
}

uint64_t tlb_sets_find(struct tlb_sets *sets, uint64_t number, uint64_t key)
{
    uint64_t const set = set_of(sets, number);
    if (is_ordered(sets))
        return find_ordered(sets, set * sets->ways, key);
    uint64_t const place = sets->hashed ? find_hashed(sets, key) : find_scanned(sets, set * sets->ways, key);
    if (place != TLB_NOWHERE)
        use(sets, set, place);
    return place;
}

static void leave_bucket(struct tlb_sets *sets, uint64_t place)
{
    uint32_t *link = bucket_of(sets, sets->keys[place]);
    while (*link != place + 1)
        link = &sets->next[*link - 1];
    *link = sets->next[place];
}

static void replace(struct tlb_sets *sets, uint64_t place, uint64_t key)
{
    if (sets->hashed) {
        if (sets->keys[place])
            leave_bucket(sets, place);
        uint32_t *const bucket = bucket_of(sets, key);
        sets->next[place] = *bucket;
        *bucket = (uint32_t)place + 1;
    }
    sets->keys[place] = key;
    if (sets->ready)
        sets->ready[place] = 0;
}

uint64_t tlb_sets_put(struct tlb_sets *sets, uint64_t number, uint64_t key)
{
    uint64_t const set = set_of(sets, number);
    if (is_ordered(sets)) {
        uint64_t const first = set * sets->ways;
        move_up(sets->keys + first, sets->ways - 1, key);
        if (sets->ready)
            move_up(sets->ready + first, sets->ways - 1, 0);
        return first;
    }
    uint64_t const place = victim(sets, set);
    replace(sets, place, key);
    use(sets, set, place);
    return place;
}

void tlb_sets_take(struct tlb_sets *sets, uint64_t word, uint64_t key)
{
    replace(sets, tlb_scaled(word, sets->sets * sets->ways), key);
}

/* -- Making ------------------------------------------------------------------------------------------ */

static int make_buckets(struct tlb_sets *sets, uint64_t entries)
{
    while (UINT64_C(1) << sets->bucket_bits < 2 * entries)
        sets->bucket_bits++;
    sets->bucket = calloc(UINT64_C(1) << sets->bucket_bits, sizeof(*sets->bucket));
    sets->next = calloc(entries, sizeof(*sets->next));
    return sets->bucket && sets->next ? 0 : -ENOMEM;
}

static int make_list(struct tlb_sets *sets, uint64_t entries)
{
    sets->newer = malloc(entries * sizeof(*sets->newer));
    sets->older = malloc(entries * sizeof(*sets->older));
    sets->newest = malloc(sets->sets * sizeof(*sets->newest));
    sets->oldest = malloc(sets->sets * sizeof(*sets->oldest));
    if (!sets->newer || !sets->older || !sets->newest || !sets->oldest)
        return -ENOMEM;
    for (uint64_t set = 0; set < sets->sets; set++) {
        sets->newest[set] = sets->oldest[set] = UINT32_MAX;
        for (uint64_t way = 0; way < sets->ways; way++)
            link_newest(sets, set, (uint32_t)(set * sets->ways + way));
    }
    return 0;
}

static int make_filled(struct tlb_sets *sets)
{
    sets->filled = calloc(sets->sets, sizeof(*sets->filled));
    if (!sets->filled)
        return -ENOMEM;
    if (sets->replacement != TLB_REPLACE_PLRU)
        return 0;
    sets->words = (sets->ways + 63) / 64;
    sets->tree = calloc(sets->sets * sets->words, sizeof(*sets->tree));
    return sets->tree ? 0 : -ENOMEM;
}

int tlb_sets_make(struct tlb_sets *sets, const struct tlb_model_sets *config, uint64_t seed, bool timed)
{
    uint64_t const entries = (uint64_t)config->entries;
    uint64_t const ways = config->ways > 0 ? (uint64_t)config->ways : entries;
    *sets = (struct tlb_sets){.sets = entries / ways,
                              .ways = ways,
                              .hashed = ways > TLB_SETS_SCANNED,
                              .replacement = (enum tlb_model_replacement)config->replacement,
                              .random = seed};
    sets->power = (sets->sets & (sets->sets - 1)) == 0;
    sets->bits = 63 - (unsigned)__builtin_clzll(sets->sets);
    sets->index = sets->bits ? (enum tlb_model_index)config->index : TLB_INDEX_PLAIN;
    sets->keys = calloc(entries, sizeof(*sets->keys));
    sets->ready = timed ? calloc(entries, sizeof(*sets->ready)) : NULL;
    if (!sets->keys || (timed && !sets->ready))
        return -ENOMEM;
    if (sets->hashed && make_buckets(sets, entries) < 0)
        return -ENOMEM;
    if (sets->replacement != TLB_REPLACE_LRU)
        return make_filled(sets);
    return sets->hashed ? make_list(sets, entries) : 0;
}

void tlb_sets_free(struct tlb_sets *sets)
{
    free(sets->keys);
    free(sets->ready);
    free(sets->tree);
    free(sets->filled);
    free(sets->bucket);
    free(sets->next);
    free(sets->newer);
    free(sets->older);
    free(sets->newest);
    free(sets->oldest);
    *sets = (struct tlb_sets){0};
}
