/*
 * Sets of entries: plain, folded and hashed index; LRU, tree-PLRU and random replacement.
 *
 * A set of few ways has a head of half a line of the host's cache, with a few bits of each key and the order
 * of use: that alone tells most misses, which is what lets a large simulated cache run fast. Sets of many
 * ways, such as a fully associative TLB, find keys by hash, and LRU links them. What is left out: invalid
 * entries after the first filling, since nothing but replacement takes an entry away.
 *
 * Tree-PLRU as in the literature (e.g. J. Handy, The Cache Memory Book): each node of a binary tree over the
 * ways points to the half that was not used last; the victim is where the nodes lead to.
 */
#include "simulated/sets.h"

#include "random.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t const GOLDEN = UINT64_C(0x9e3779b97f4a7c15), EACH_BYTE = UINT64_C(0x0101010101010101),
                      EACH_NIBBLE = UINT64_C(0x1111111111111111);

/* -- Where a key belongs ----------------------------------------------------------------------- */

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
    return &sets->bucket[key * GOLDEN >> (64 - sets->bucket_bits)];
}

/* -- Sets with a head -------------------------------------------------------------------------- */

static inline uint64_t tag_of(uint64_t key)
{
    uint64_t const tag = key * GOLDEN >> 56;
    return tag ? tag : 1;
}

/* A bit for each byte that is zero, the lowest first. */
static inline unsigned zero_bytes(uint64_t bytes)
{
    uint64_t const low = 0x7f * EACH_BYTE;
    uint64_t const high_bits = ~(((bytes & low) + low) | bytes | low);
    return (unsigned)((high_bits >> 7) * UINT64_C(0x0102040810204080) >> 56);
}

/* Which ways may hold a key: together, as a branch for each half would be predicted wrongly. */
static inline unsigned candidates(const struct tlb_set_head *head, uint64_t ways, uint64_t key)
{
    uint64_t const wanted = tag_of(key) * EACH_BYTE;
    unsigned const first = zero_bytes(head->tags[0] ^ wanted);
    return ways <= 8 ? first : first | zero_bytes(head->tags[1] ^ wanted) << 8;
}

static inline uint64_t find_by_tag(const struct tlb_sets *sets, uint64_t set, uint64_t key)
{
    uint64_t const *const keys = sets->keys + set * sets->ways;
    for (unsigned same = candidates(&sets->heads[set], sets->ways, key); same; same &= same - 1) {
        unsigned const way = (unsigned)__builtin_ctz(same);
        if (keys[way] == key)
            return way;
    }
    return TLB_NOWHERE;
}

static inline void set_tag(struct tlb_set_head *head, uint64_t way, uint64_t key)
{
    unsigned const shift = 8 * (way % 8);
    uint64_t *const tags = &head->tags[way / 8];
    *tags = (*tags & ~(UINT64_C(0xff) << shift)) | tag_of(key) << shift;
}

/* The lowest nibble that is `way` comes first; those before it move up. */
static inline uint64_t move_first(uint64_t order, uint64_t way)
{
    uint64_t const other = order ^ way * EACH_NIBBLE;
    uint64_t const same = (other - EACH_NIBBLE) & ~other & 8 * EACH_NIBBLE; /* its lowest bit is exact */
    uint64_t const up_to = same ^ (same - 1), below = up_to >> 4;           /* with its nibble, and without */
    return (order & ~up_to) | (order & below) << 4 | way;
}

/* -- Tree-PLRU: node 1 is the root, below node n are 2n and 2n + 1; a bit of 1 points to the second. --- */

static inline void point_away(uint64_t *tree, uint64_t ways, uint64_t way)
{
    for (uint64_t node = way + ways; node > 1; node /= 2) {
        uint64_t const parent = node / 2, bit = UINT64_C(1) << parent % 64;
        if (node % 2)
            tree[parent / 64] &= ~bit;
        else
            tree[parent / 64] |= bit;
    }
}

static uint64_t pointed_to(const uint64_t *tree, uint64_t ways)
{
    uint64_t node = 1;
    while (node < ways)
        node = 2 * node + (tree[node / 64] >> node % 64 & 1);
    return node - ways;
}

/* -- Sets that are linked ---------------------------------------------------------------------- */

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

static inline uint64_t find_by_hash(const struct tlb_sets *sets, uint64_t key)
{
    for (uint32_t place = *bucket_of(sets, key); place; place = sets->next[place - 1])
        if (sets->keys[place - 1] == key)
            return place - 1;
    return TLB_NOWHERE;
}

static void leave_bucket(struct tlb_sets *sets, uint64_t place)
{
    uint32_t *link = bucket_of(sets, sets->keys[place]);
    while (*link != place + 1)
        link = &sets->next[*link - 1];
    *link = sets->next[place];
}

static void change_bucket(struct tlb_sets *sets, uint64_t place, uint64_t key)
{
    if (sets->keys[place])
        leave_bucket(sets, place);
    uint32_t *const bucket = bucket_of(sets, key);
    sets->next[place] = *bucket;
    *bucket = (uint32_t)place + 1;
}

/* -- Order of use, and who has to go ----------------------------------------------------------- */

static inline void use_headed(const struct tlb_sets *sets, uint64_t set, uint64_t way)
{
    uint64_t *const order = &sets->heads[set].order;
    if (sets->replacement == TLB_REPLACE_LRU)
        *order = move_first(*order, way);
    else if (sets->replacement == TLB_REPLACE_PLRU)
        point_away(order, sets->ways, way);
}

static inline void use_linked(struct tlb_sets *sets, uint64_t set, uint64_t place)
{
    if (sets->replacement == TLB_REPLACE_PLRU) {
        point_away(sets->tree + set * sets->words, sets->ways, place - set * sets->ways);
    } else if (sets->replacement == TLB_REPLACE_LRU && sets->newest[set] != place) {
        unlink_place(sets, set, (uint32_t)place);
        link_newest(sets, set, (uint32_t)place);
    }
}

static inline uint64_t random_way(struct tlb_sets *sets)
{
    return tlb_scaled(tlb_splitmix_next(&sets->random), sets->ways);
}

static inline uint64_t victim_headed(struct tlb_sets *sets, uint64_t set)
{
    struct tlb_set_head *const head = &sets->heads[set];
    if (sets->replacement == TLB_REPLACE_LRU)
        return head->order >> 4 * (sets->ways - 1) & 15;
    if (head->filled < sets->ways)
        return head->filled++;
    return sets->replacement == TLB_REPLACE_PLRU ? pointed_to(&head->order, sets->ways) : random_way(sets);
}

static uint64_t victim_linked(struct tlb_sets *sets, uint64_t set)
{
    if (sets->replacement == TLB_REPLACE_LRU)
        return sets->oldest[set] - set * sets->ways;
    if (sets->filled[set] < sets->ways)
        return sets->filled[set]++;
    return sets->replacement == TLB_REPLACE_PLRU ? pointed_to(sets->tree + set * sets->words, sets->ways)
                                                 : random_way(sets);
}

/* -- Finding and replacing --------------------------------------------------------------------- */

static inline uint64_t find_headed(struct tlb_sets *sets, uint64_t set, uint64_t key)
{
    uint64_t const way = find_by_tag(sets, set, key);
    if (way == TLB_NOWHERE)
        return TLB_NOWHERE;
    use_headed(sets, set, way);
    return set * sets->ways + way;
}

uint64_t tlb_sets_find(struct tlb_sets *sets, uint64_t number, uint64_t key)
{
    uint64_t const set = set_of(sets, number);
    if (sets->heads)
        return find_headed(sets, set, key);
    uint64_t const place = find_by_hash(sets, key);
    if (place != TLB_NOWHERE)
        use_linked(sets, set, place);
    return place;
}

static inline void replace(struct tlb_sets *sets, uint64_t set, uint64_t way, uint64_t key)
{
    uint64_t const place = set * sets->ways + way;
    if (sets->heads)
        set_tag(&sets->heads[set], way, key);
    else
        change_bucket(sets, place, key);
    sets->keys[place] = key;
    if (sets->ready)
        sets->ready[place] = 0;
}

uint64_t tlb_sets_put(struct tlb_sets *sets, uint64_t number, uint64_t key)
{
    uint64_t const set = set_of(sets, number);
    uint64_t const way = sets->heads ? victim_headed(sets, set) : victim_linked(sets, set);
    replace(sets, set, way, key);
    if (sets->heads)
        use_headed(sets, set, way);
    else
        use_linked(sets, set, set * sets->ways + way);
    return set * sets->ways + way;
}

void tlb_sets_take(struct tlb_sets *sets, uint64_t word, uint64_t key)
{
    uint64_t const place = tlb_scaled(word, sets->sets * sets->ways);
    replace(sets, place / sets->ways, place % sets->ways, key);
}

/* -- Making ------------------------------------------------------------------------------------ */

static int make_heads(struct tlb_sets *sets)
{
    sets->heads = calloc(sets->sets, sizeof(*sets->heads));
    if (!sets->heads)
        return -ENOMEM;
    if (sets->replacement == TLB_REPLACE_LRU)
        for (uint64_t set = 0; set < sets->sets; set++)
            sets->heads[set].order = UINT64_C(0xfedcba9876543210);
    return 0;
}

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
                              .replacement = (enum tlb_model_replacement)config->replacement,
                              .random = seed};
    sets->power = (sets->sets & (sets->sets - 1)) == 0;
    sets->bits = 63 - (unsigned)__builtin_clzll(sets->sets);
    sets->index = sets->bits ? (enum tlb_model_index)config->index : TLB_INDEX_PLAIN;
    sets->keys = calloc(entries, sizeof(*sets->keys));
    sets->ready = timed ? calloc(entries, sizeof(*sets->ready)) : NULL;
    if (!sets->keys || (timed && !sets->ready))
        return -ENOMEM;
    if (ways <= TLB_SETS_SCANNED)
        return make_heads(sets);
    if (make_buckets(sets, entries) < 0)
        return -ENOMEM;
    return sets->replacement == TLB_REPLACE_LRU ? make_list(sets, entries) : make_filled(sets);
}

void tlb_sets_free(struct tlb_sets *sets)
{
    free(sets->keys);
    free(sets->ready);
    free(sets->heads);
    free(sets->bucket);
    free(sets->next);
    free(sets->newer);
    free(sets->older);
    free(sets->newest);
    free(sets->oldest);
    free(sets->filled);
    free(sets->tree);
    *sets = (struct tlb_sets){0};
}
