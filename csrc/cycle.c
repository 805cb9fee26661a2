/*
 * Uniformly random single cycles, built at memory speed.
 *
 * A random order of all nodes, closed to a ring, is a uniformly random cycle. Shuffling 2^27 nodes in place
 * misses every cache at every step; so:
 *
 *   1. fill    every node draws a bucket; buckets list their nodes, ascending
 *   2. order   each bucket, small enough for the cache, becomes a random ring in which a node's place holds
 *              its successor; the rings are cut and joined
 *   3. gather  the same draws again, node by node, find each node's successor
 *   4. expand  successors become addresses in the nodes
 *
 * Independent draws and uniform order within buckets are a uniform order of all; buckets may differ in size.
 * Steps 1, 3 and 4 read and write sequentially, one stream a bucket. Two lists of indices are all they need,
 * and the nodes have room for them: the cycle is built within the memory that it will occupy.
 */
#include "random.h"
#include "tlbprobe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The index of few enough nodes, at half the memory traffic. A test narrows it, to reach the wide code ... */
#ifndef TLB_NARROW
#define TLB_NARROW uint32_t
#endif
typedef TLB_NARROW narrow;

/* ... and shrinks the buckets, to have many of few nodes. So many fit the cache while they become a ring. */
#ifndef TLB_BUCKET_NODES
#define TLB_BUCKET_NODES (1 << 14)
#endif

enum {
    BUCKETS_MOST = 383,   /* more streams outrun caches and TLB; a power of two would share cache sets */
    SPACING_DENSE = 4096, /* bytes: every page there is holds a node of those so near each other */
    DRAWS = 4,            /* bucket numbers from one random number, 16 bits each */
    NODES_BETWEEN_POLLS = 1 << 15, /* each may miss all caches and the TLB */
};

/* -- Where nodes are --------------------------------------------------------------------------------- */

static uint64_t digit_sum(uint64_t i, uint64_t base)
{
    uint64_t sum = 0;
    for (; i > 0; i /= base)
        sum += i % base;
    return sum;
}

static uint64_t digit_sum_of_power(uint64_t i, int shift)
{
    uint64_t sum = 0;
    for (; i > 0; i >>= shift)
        sum += i & ((UINT64_C(1) << shift) - 1);
    return sum;
}

/* Digit sum of i in a base, modulo the base: one of `base` places, each as often as any other. */
static inline uint64_t place_of(uint64_t i, uint64_t base)
{
    if (base == 1)
        return 0;
    if ((base & (base - 1)) == 0)
        return digit_sum_of_power(i, __builtin_ctzll(base)) & (base - 1);
    return digit_sum(i, base) % base;
}

static inline char *node_at(const struct tlb_nodes *nodes, uint64_t i)
{
    if (nodes->offsets)
        return nodes->base + nodes->offsets[i];
    uint64_t const k = nodes->first + i;
    uint64_t const line = place_of(k, nodes->pages) * nodes->lines + place_of(k, nodes->lines);
    return nodes->base + i * nodes->spacing + line * nodes->line;
}

char *tlb_node(const struct tlb_nodes *nodes, uint64_t i)
{
    return node_at(nodes, i);
}

static uint64_t span_of_offsets(const struct tlb_nodes *nodes)
{
    uint64_t furthest = 0, misaligned = 0;
    for (uint64_t i = 0; i < nodes->count; i++) {
        misaligned |= nodes->offsets[i] % 8;
        if (nodes->offsets[i] > furthest)
            furthest = nodes->offsets[i];
    }
    return misaligned || furthest > UINT64_MAX - 16 ? UINT64_MAX : furthest + 8;
}

/* Bytes from the first line of a cell to the last one; false unless lines lie apart, within their cells. */
static bool lines_span(const struct tlb_nodes *nodes, uint64_t *span)
{
    uint64_t lines;
    if (nodes->lines == 0 || nodes->pages == 0 || nodes->spacing < 8 || nodes->spacing % 8 ||
        __builtin_mul_overflow(nodes->pages, nodes->lines, &lines) ||
        __builtin_mul_overflow(lines - 1, nodes->line, span))
        return false;
    return lines == 1 || (nodes->line >= 8 && nodes->line % 8 == 0 && lines <= nodes->spacing / nodes->line);
}

uint64_t tlb_nodes_span(const struct tlb_nodes *nodes)
{
    uint64_t last, lines, span;
    if (nodes->count == 0)
        return UINT64_MAX;
    if (nodes->offsets)
        return span_of_offsets(nodes);
    if (!lines_span(nodes, &lines) || __builtin_mul_overflow(nodes->count - 1, nodes->spacing, &last) ||
        __builtin_add_overflow(last, lines, &span) || __builtin_add_overflow(span, 8, &span))
        return UINT64_MAX;
    return span;
}

static inline void link_node(const struct tlb_nodes *nodes, uint64_t i, uint64_t next)
{
    *(void **)node_at(nodes, i) = node_at(nodes, next);
}

/* -- Lists of indices, of either width ----------------------------------------------------------------- */

static inline uint64_t get(const void *list, uint64_t i, size_t width)
{
    return width == sizeof(narrow) ? ((const narrow *)list)[i] : ((const uint64_t *)list)[i];
}

static inline void put(void *list, uint64_t i, uint64_t value, size_t width)
{
    if (width == sizeof(narrow))
        ((narrow *)list)[i] = (narrow)value;
    else
        ((uint64_t *)list)[i] = value;
}

/* -- Buckets ------------------------------------------------------------------------------------------- */

struct buckets {
    uint64_t count; /* nodes */
    uint64_t buckets;
    uint64_t seed;
    uint64_t *start; /* [buckets + 1]: where each list begins */
    uint64_t *place; /* [buckets]: where each list is being read or written */
    void *lists;     /* [count] nodes by bucket, then the successor of each */
    void *next;      /* [count] successors by node */
};

struct draws {
    struct tlb_random random;
    uint64_t word;
    uint64_t buckets;
};

static struct draws draws_begin(const struct buckets *b)
{
    return (struct draws){.random = tlb_random_seeded(b->seed), .buckets = b->buckets};
}

/* The bucket of node i, for i = 0, 1, 2 ... in this order. */
static inline uint64_t draw(struct draws *draws, uint64_t i)
{
    if (i % DRAWS == 0)
        draws->word = tlb_random_next(&draws->random);
    else
        draws->word >>= 64 / DRAWS;
    return (draws->word & 0xffff) * draws->buckets >> 16;
}

static inline int ask_at(uint64_t i, const struct tlb_poll *poll)
{
    return tlb_ask_at(i, NODES_BETWEEN_POLLS, poll);
}

static void rewind_places(struct buckets *b)
{
    memcpy(b->place, b->start, sizeof(*b->place) * b->buckets);
}

static int size_buckets(struct buckets *b, const struct tlb_poll *poll)
{
    int status = 0;
    struct draws draws = draws_begin(b);
    for (uint64_t i = 0; i < b->count && (status = ask_at(i, poll)) == 0; i++)
        b->start[draw(&draws, i) + 1]++;
    for (uint64_t k = 0; k < b->buckets; k++)
        b->start[k + 1] += b->start[k];
    return status;
}

static inline int fill(struct buckets *b, size_t width, const struct tlb_poll *poll)
{
    int status = 0;
    struct draws draws = draws_begin(b);
    rewind_places(b);
    for (uint64_t i = 0; i < b->count && (status = ask_at(i, poll)) == 0; i++)
        put(b->lists, b->place[draw(&draws, i)]++, i, width);
    return status;
}

/* A random ring of one list: S. Sattolo, An algorithm to generate a random cyclic permutation, Information
 * Processing Letters 22 (1986). Each place gets the successor of the node that it listed. */
static inline int make_ring(void *list, uint64_t size, struct tlb_random *random, size_t width,
                            const struct tlb_poll *poll)
{
    int status;
    for (uint64_t i = size - 1; i > 0; i--) {
        if ((status = ask_at(i, poll)) < 0)
            return status;
        uint64_t const j = tlb_random_below(random, i), here = get(list, i, width);
        put(list, i, get(list, j, width), width);
        put(list, j, here, width);
    }
    return 0;
}

/* Rings, each cut at a random place and joined to the next: a cut ring is a uniformly random order. */
static inline int order(struct buckets *b, size_t width, const struct tlb_poll *poll)
{
    int status;
    struct tlb_random random = tlb_random_seeded(~b->seed); /* a stream that draw() does not use */
    uint64_t first = UINT64_MAX;                            /* node that the ring of all begins with */
    uint64_t open = 0;                                      /* place that waits for its successor */
    for (uint64_t k = 0; k < b->buckets; k++) {
        uint64_t const start = b->start[k], size = b->start[k + 1] - start;
        if ((status = tlb_ask(poll)) < 0)
            return status;
        if (size == 0)
            continue;
        if ((status = make_ring((char *)b->lists + start * width, size, &random, width, poll)) < 0)
            return status;
        uint64_t const cut = start + tlb_random_below(&random, size);
        uint64_t const head = get(b->lists, cut, width);
        if (first == UINT64_MAX)
            first = head;
        else
            put(b->lists, open, head, width);
        open = cut;
    }
    put(b->lists, open, first, width);
    return 0;
}

static inline int gather(struct buckets *b, size_t width, const struct tlb_poll *poll)
{
    int status = 0;
    struct draws draws = draws_begin(b);
    rewind_places(b);
    for (uint64_t i = 0; i < b->count && (status = ask_at(i, poll)) == 0; i++)
        put(b->next, i, get(b->lists, b->place[draw(&draws, i)]++, width), width);
    return status;
}

/* Ascending: the list of successors ends where the last node does, so no node reaches its unread part. */
static inline int expand(const struct buckets *b, const struct tlb_nodes *nodes, size_t width,
                         const struct tlb_poll *poll)
{
    int status = 0;
    struct tlb_nodes const at = *nodes; /* a copy that the stores cannot alias */
    for (uint64_t i = 0; i < at.count && (status = ask_at(i, poll)) == 0; i++)
        link_node(&at, i, get(b->next, i, width));
    return status;
}

/* Always inlined, so that each width has its own tight loops. */
__attribute__((always_inline)) static inline int build(struct buckets *b, const struct tlb_nodes *nodes,
                                                       size_t width, const struct tlb_poll *poll)
{
    int status = 0;
    if ((status = fill(b, width, poll)) < 0 || (status = order(b, width, poll)) < 0 ||
        (status = gather(b, width, poll)) < 0)
        return status;
    return expand(b, nodes, width, poll);
}

static int link_by_buckets(const struct tlb_nodes *nodes, uint64_t seed, void *lists, size_t width,
                           const struct tlb_poll *poll)
{
    uint64_t const wanted = nodes->count / TLB_BUCKET_NODES + 1;
    struct buckets b = {.count = nodes->count, .seed = seed, .lists = lists};
    b.buckets = wanted < BUCKETS_MOST ? wanted : BUCKETS_MOST;
    b.next = (char *)lists + nodes->count * width;
    b.start = calloc(2 * b.buckets + 1, sizeof(*b.start));
    if (!b.start)
        return -ENOMEM;
    b.place = b.start + b.buckets + 1;

    int status = size_buckets(&b, poll);
    if (status == 0)
        status = width == sizeof(narrow) ? build(&b, nodes, sizeof(narrow), poll)
                                         : build(&b, nodes, sizeof(uint64_t), poll);
    free(b.start);
    return status;
}

/* -- Where there is no room for lists: one ring in place, slow, since every step misses the caches. ----- */

static int link_in_place(const struct tlb_nodes *nodes, uint64_t seed, const struct tlb_poll *poll)
{
    int status = 0;
    struct tlb_random random = tlb_random_seeded(seed);
    for (uint64_t i = 0; i < nodes->count && (status = ask_at(i, poll)) == 0; i++)
        link_node(nodes, i, i);
    for (uint64_t i = nodes->count - 1; i > 0 && status == 0; i--) {
        if ((status = ask_at(i, poll)) < 0)
            return status;
        void **const here = (void **)tlb_node(nodes, i);
        void **const there = (void **)tlb_node(nodes, tlb_random_below(&random, i));
        void *const swapped = *here;
        *here = *there;
        *there = swapped;
    }
    return status;
}

/* -- The cycle ------------------------------------------------------------------------------------------ */

static int link_with_lists(const struct tlb_nodes *nodes, uint64_t seed, uint64_t bytes, size_t width,
                           const struct tlb_poll *poll)
{
    void *const lists = malloc(bytes);
    if (!lists)
        return -ENOMEM;
    int const status = link_by_buckets(nodes, seed, lists, width, poll);
    free(lists);
    return status;
}

int tlb_cycle_link(const struct tlb_nodes *nodes, uint64_t seed, const struct tlb_poll *poll)
{
    uint64_t const span = tlb_nodes_span(nodes);
    size_t const width = nodes->count - 1 <= (narrow)-1 ? sizeof(narrow) : sizeof(uint64_t);
    uint64_t bytes;
    if (span == UINT64_MAX || __builtin_mul_overflow(nodes->count, 2 * width, &bytes))
        return -EINVAL;
    if (nodes->offsets || nodes->spacing > SPACING_DENSE) /* what lies between the nodes is not ours */
        return link_with_lists(nodes, seed, bytes, width, poll);
    if (bytes <= span)
        return link_by_buckets(nodes, seed, nodes->base + span - bytes, width, poll);
    return link_in_place(nodes, seed, poll);
}

/* -- Windows ------------------------------------------------------------------------------------------ */

static struct tlb_nodes window_of(const struct tlb_nodes *nodes, uint64_t window, uint64_t w)
{
    struct tlb_nodes part = *nodes;
    part.first += w * window;
    part.base += w * window * nodes->spacing;
    part.count = nodes->count - w * window < window ? nodes->count - w * window : window;
    return part;
}

/* The ring of one window; small ones stay in the cache, and lists would cost more than they save. */
static int link_window(const struct tlb_nodes *part, struct tlb_random *random, const struct tlb_poll *poll)
{
    uint64_t const seed = tlb_random_next(random);
    return part->count <= TLB_BUCKET_NODES ? link_in_place(part, seed, poll)
                                           : tlb_cycle_link(part, seed, poll);
}

/* Rings, each cut at a random node and joined to the next, as with buckets. */
static int join_windows(const struct tlb_nodes *nodes, uint64_t window, const uint64_t *order,
                        uint64_t windows, struct tlb_random *random, const struct tlb_poll *poll)
{
    int status;
    void *first = NULL, **open = NULL;
    for (uint64_t k = 0; k < windows; k++) {
        struct tlb_nodes const part = window_of(nodes, window, order[k]);
        if ((status = ask_at(k, poll)) < 0 || (status = link_window(&part, random, poll)) < 0)
            return status;
        void **const cut = (void **)node_at(&part, tlb_random_below(random, part.count));
        if (open)
            *open = *cut;
        else
            first = *cut;
        open = cut;
    }
    *open = first;
    return 0;
}

int tlb_cycle_link_windows(const struct tlb_nodes *nodes, uint64_t window, uint64_t seed,
                           const struct tlb_poll *poll)
{
    if (tlb_nodes_span(nodes) == UINT64_MAX || nodes->offsets || window == 0)
        return -EINVAL;
    if (window == 1 || window >= nodes->count)
        return tlb_cycle_link(nodes, seed, poll);
    uint64_t const windows = (nodes->count - 1) / window + 1;
    struct tlb_random random = tlb_random_seeded(seed);
    uint64_t *const order = calloc(windows, sizeof(*order));
    if (!order)
        return -ENOMEM;
    for (uint64_t w = 0; w < windows; w++) {
        uint64_t const other = tlb_random_below(&random, w + 1);
        order[w] = order[other];
        order[other] = w;
    }
    int const status = join_windows(nodes, window, order, windows, &random, poll);
    free(order);
    return status;
}

/* Every pointer is checked before it is followed: damaged memory must not crash who looks for the damage. */
int tlb_cycle_walk(const struct tlb_nodes *nodes, uint64_t limit, uint64_t *steps,
                   const struct tlb_poll *poll)
{
    int status;
    uint64_t const span = tlb_nodes_span(nodes);
    const char *const first = tlb_node(nodes, 0);
    const char *node = first;
    uint64_t walked = 0;
    *steps = 0;
    do {
        if ((status = ask_at(walked, poll)) < 0)
            return status;
        node = *(char *const *)node;
        uint64_t const offset = (uint64_t)((uintptr_t)node - (uintptr_t)nodes->base);
        if (offset > span - 8 || offset % 8)
            return 0;
    } while (++walked < limit && node != first);
    if (node == first)
        *steps = walked;
    return 0;
}
