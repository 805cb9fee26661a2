/*
 * chase: a dependent load. Each node holds the address of the next one of a single random cycle, so a load
 * cannot start before the last one has ended, and no prefetcher knows where it goes.
 *
 * Isolates the load-to-use latency of the memory level and, with one node a page, of the translation level
 * that the working set falls into. Confounded by whatever both share: compare spread with packed nodes to
 * separate them. Source: DESIGN.md, working set; the cycle itself is in cycle.c.
 */
#include "tlbprobe.h"

#include <errno.h>

static const char *const chase_parameters[] = {"nodes", "spacing", "lines", "line", "seed", NULL};

static struct tlb_nodes chase_nodes(const struct tlb_run *run)
{
    return (struct tlb_nodes){.base = run->base,
                              .count = run->parameter[0],
                              .spacing = run->parameter[1],
                              .lines = run->parameter[2],
                              .line = run->parameter[3]};
}

static int chase_prepare(struct tlb_run *run, const struct tlb_poll *poll)
{
    struct tlb_nodes const nodes = chase_nodes(run);
    if (tlb_nodes_span(&nodes) > run->size)
        return -EINVAL;
    run->lap = nodes.count;
    run->cursor = tlb_node(&nodes, 0);
    return tlb_cycle_link(&nodes, run->parameter[4], poll);
}

static void chase_access(struct tlb_run *run, uint64_t accesses)
{
    void *node = run->cursor;
    for (uint64_t i = 0; i < accesses; i++)
        node = *(void *volatile *)node;
    run->cursor = node;
}

static int chase_verify(struct tlb_run *run, uint64_t *found, const struct tlb_poll *poll)
{
    struct tlb_nodes const nodes = chase_nodes(run);
    return tlb_cycle_walk(&nodes, nodes.count, found, poll);
}

const struct tlb_kernel tlb_kernel_chase = {
    .name = "chase",
    .parameters = chase_parameters,
    .prepare = chase_prepare,
    .access = chase_access,
    .verify = chase_verify,
};
