/*
 * places: a dependent load, as in chase, on nodes whose places are listed. The list lies in the memory itself
 * when the kernel is prepared: so many offsets from its start, in bytes. They become one random cycle.
 *
 * Isolates what the set index of a TLB or of a cache makes of chosen addresses: pages that collide, and pages
 * that do not. Confounded by whatever else the places share: the sets of data caches, lines of page tables.
 * Nothing but the nodes is touched, so that they may be far apart in memory that is not there otherwise.
 */
#include "tlbprobe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum parameter { NODES, LIST, SEED };
enum state { NODE, OFFSETS };
enum { NODES_BETWEEN_POLLS = 512 };

static const char *const places_parameters[] = {"nodes", "list", "seed", NULL};

static struct tlb_nodes places_nodes(const struct tlb_run *run)
{
    return (struct tlb_nodes){.base = run->base,
                              .count = run->parameter[NODES],
                              .offsets = (const uint64_t *)(uintptr_t)run->state[OFFSETS]};
}

static int ascending(const void *one, const void *other)
{
    uint64_t const a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* Copies the list, since nodes may come to lie on it; in ascending order, in which nobody is there twice. */
static int read_list(struct tlb_run *run)
{
    uint64_t const count = run->parameter[NODES], list = run->parameter[LIST];
    uint64_t bytes;
    if (count == 0 || list % 8 || list > run->size || __builtin_mul_overflow(count, 8, &bytes) ||
        bytes > run->size - list)
        return -EINVAL;
    uint64_t *const offsets = malloc(bytes);
    if (!offsets)
        return -ENOMEM;
    run->state[OFFSETS] = (uintptr_t)offsets;
    memcpy(offsets, run->base + list, bytes);
    qsort(offsets, count, sizeof(*offsets), ascending);
    for (uint64_t i = 0; i < count; i++)
        if (offsets[i] % 8 || offsets[i] > run->size - 8 || (i > 0 && offsets[i] == offsets[i - 1]))
            return -EINVAL;
    return 0;
}

static int places_prepare(struct tlb_run *run, const struct tlb_poll *poll)
{
    int const status = read_list(run);
    if (status < 0)
        return status;
    struct tlb_nodes const nodes = places_nodes(run);
    run->lap = nodes.count;
    run->state[NODE] = (uintptr_t)tlb_node(&nodes, 0);
    return tlb_cycle_link(&nodes, run->parameter[SEED], poll);
}

static void places_access(struct tlb_run *run, uint64_t accesses)
{
    void *node = (void *)(uintptr_t)run->state[NODE];
    for (uint64_t i = 0; i < accesses; i++)
        node = *(void *volatile *)node;
    run->state[NODE] = (uintptr_t)node;
}

static int places_verify(struct tlb_run *run, uint64_t *found, const struct tlb_poll *poll)
{
    struct tlb_nodes const nodes = places_nodes(run);
    return tlb_cycle_walk(&nodes, nodes.count, found, poll);
}

static int places_pass(struct tlb_run *run, const struct tlb_poll *poll)
{
    struct tlb_nodes const nodes = places_nodes(run);
    int status = 0;
    for (uint64_t i = 0; i < nodes.count && status == 0; i++) {
        (void)*(void *volatile *)tlb_node(&nodes, i);
        status = tlb_ask_at(i, NODES_BETWEEN_POLLS, poll);
    }
    return status;
}

static void places_release(struct tlb_run *run)
{
    free((void *)(uintptr_t)run->state[OFFSETS]);
}

const struct tlb_kernel tlb_kernel_places = {
    .name = "places",
    .parameters = places_parameters,
    .prepare = places_prepare,
    .access = places_access,
    .verify = places_verify,
    .pass = places_pass,
    .release = places_release,
};
