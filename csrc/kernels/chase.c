/*
 * chase: a dependent load. Each node holds the address of the next one of a random cycle, so a load cannot
 * start before the last one has ended, and no prefetcher knows where it goes.
 *
 * Isolates the load-to-use latency of the memory level and, with one node a page, of the translation level
 * that the working set falls into. Confounded by whatever both share: compare spread with packed nodes to
 * separate them. Several chains, each a cycle of its own on nodes of its own, have as many loads in flight:
 * access k belongs to chain k modulo their number. A store writes back to the node what was loaded from it,
 * so that its line is owned and dirty. The cycles are made in cycle.c.
 */
#include "tlbprobe.h"

#include <errno.h>

enum { CHAINS_MOST = 16, PASS_BYTES = 4096 /* the smallest page there is */ };

enum parameter { NODES, SPACING, PAGES, LINES, LINE, SEED, WINDOW, CHAINS, STORE };

static const char *const chase_parameters[] = {"nodes", "spacing", "pages",  "lines", "line",
                                               "seed",  "window",  "chains", "store", NULL};

static struct tlb_nodes chase_nodes(const struct tlb_run *run)
{
    return (struct tlb_nodes){.base = run->base,
                              .count = run->parameter[NODES],
                              .spacing = run->parameter[SPACING],
                              .pages = run->parameter[PAGES],
                              .lines = run->parameter[LINES],
                              .line = run->parameter[LINE]};
}

/* The first node of a chain: whole windows for each, as far as there are enough of them. */
static uint64_t chain_begin(const struct tlb_run *run, uint64_t chain)
{
    uint64_t const nodes = run->parameter[NODES], chains = run->parameter[CHAINS];
    uint64_t const window = run->parameter[WINDOW];
    uint64_t const unit = window < nodes && nodes / window >= chains ? window : 1;
    uint64_t const units = (nodes - 1) / unit + 1, each = units / chains, more = units % chains;
    uint64_t const begin = (chain * each + (chain < more ? chain : more)) * unit;
    return begin < nodes ? begin : nodes;
}

/* Nodes of one chain: a block of them, a little longer for the first chains if they do not come out even. */
static struct tlb_nodes chain_nodes(const struct tlb_run *run, uint64_t chain)
{
    struct tlb_nodes nodes = chase_nodes(run);
    nodes.first = chain_begin(run, chain);
    nodes.count = chain_begin(run, chain + 1) - nodes.first;
    nodes.base += nodes.first * nodes.spacing;
    return nodes;
}

static int chase_prepare(struct tlb_run *run, const struct tlb_poll *poll)
{
    struct tlb_nodes const nodes = chase_nodes(run);
    uint64_t const chains = run->parameter[CHAINS], window = run->parameter[WINDOW];
    if (tlb_nodes_span(&nodes) > run->size || chains == 0 || chains > CHAINS_MOST || chains > nodes.count ||
        window == 0 || run->parameter[STORE] > 1)
        return -EINVAL;
    run->lap = nodes.count;
    int status = 0;
    for (uint64_t chain = 0; chain < chains && status == 0; chain++) {
        struct tlb_nodes const part = chain_nodes(run, chain);
        status = tlb_cycle_link_windows(&part, window, run->parameter[SEED] + chain, poll);
        run->state[chain] = (uintptr_t)tlb_node(&part, 0);
    }
    return status;
}

/* -- The timed loops, one for each number of chains, so that every node stays in a register -- */

#define LOAD(chain) node##chain = *(void *volatile *)node##chain;
#define STORE_BACK(chain)                  \
    next = *(void *volatile *)node##chain; \
    *(void *volatile *)node##chain = next; \
    node##chain = next;
#define BEGIN(chain) void *node##chain = (void *)(uintptr_t)run->state[chain];
#define END(chain) run->state[chain] = (uintptr_t)node##chain;

#define EACH_1(DO) DO(0)
#define EACH_2(DO) EACH_1(DO) DO(1)
#define EACH_3(DO) EACH_2(DO) DO(2)
#define EACH_4(DO) EACH_3(DO) DO(3)
#define EACH_5(DO) EACH_4(DO) DO(4)
#define EACH_6(DO) EACH_5(DO) DO(5)
#define EACH_7(DO) EACH_6(DO) DO(6)
#define EACH_8(DO) EACH_7(DO) DO(7)
#define EACH_9(DO) EACH_8(DO) DO(8)
#define EACH_10(DO) EACH_9(DO) DO(9)
#define EACH_11(DO) EACH_10(DO) DO(10)
#define EACH_12(DO) EACH_11(DO) DO(11)
#define EACH_13(DO) EACH_12(DO) DO(12)
#define EACH_14(DO) EACH_13(DO) DO(13)
#define EACH_15(DO) EACH_14(DO) DO(14)
#define EACH_16(DO) EACH_15(DO) DO(15)

#define LOOPS(chains)                                                \
    static void load_##chains(struct tlb_run *run, uint64_t rounds)  \
    {                                                                \
        EACH_##chains(BEGIN);                                        \
        for (uint64_t i = 0; i < rounds; i++) {                      \
            EACH_##chains(LOAD);                                     \
        }                                                            \
        EACH_##chains(END);                                          \
    }                                                                \
    static void store_##chains(struct tlb_run *run, uint64_t rounds) \
    {                                                                \
        void *next;                                                  \
        EACH_##chains(BEGIN);                                        \
        for (uint64_t i = 0; i < rounds; i++) {                      \
            EACH_##chains(STORE_BACK);                               \
        }                                                            \
        EACH_##chains(END);                                          \
    }

#define EVERY(DO) \
    DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) DO(16)
EVERY(LOOPS)

typedef void loop(struct tlb_run *run, uint64_t rounds);

#define LOADING(chains) load_##chains,
#define STORING(chains) store_##chains,
static loop *const loops[2][CHAINS_MOST + 1] = {{NULL, EVERY(LOADING)}, {NULL, EVERY(STORING)}};

/* Whole rounds of all chains, then one access more on as many chains as are left over. */
static void chase_access(struct tlb_run *run, uint64_t accesses)
{
    uint64_t const chains = run->parameter[CHAINS], store = run->parameter[STORE];
    loops[store][chains](run, accesses / chains);
    if (accesses % chains)
        loops[store][accesses % chains](run, 1);
}

/* -- Untimed --------------------------------------------------------------------------------------------- */

static int chase_verify(struct tlb_run *run, uint64_t *found, const struct tlb_poll *poll)
{
    *found = 0;
    for (uint64_t chain = 0; chain < run->parameter[CHAINS]; chain++) {
        struct tlb_nodes const nodes = chain_nodes(run, chain);
        uint64_t steps;
        int const status = tlb_cycle_walk(&nodes, nodes.count, &steps, poll);
        if (status < 0)
            return status;
        *found += steps;
    }
    return 0;
}

static int chase_pass(struct tlb_run *run, const struct tlb_poll *poll)
{
    enum { NODES_BETWEEN_POLLS = 512 };
    struct tlb_nodes const nodes = chase_nodes(run);
    uint64_t const step = nodes.spacing < PASS_BYTES ? PASS_BYTES / nodes.spacing : 1;
    int status = 0;
    for (uint64_t i = 0; i < nodes.count && status == 0; i += step) {
        (void)*(void *volatile *)tlb_node(&nodes, i);
        status = tlb_ask_at(i, step * NODES_BETWEEN_POLLS, poll);
    }
    return status;
}

const struct tlb_kernel tlb_kernel_chase = {
    .name = "chase",
    .parameters = chase_parameters,
    .prepare = chase_prepare,
    .access = chase_access,
    .verify = chase_verify,
    .pass = chase_pass,
    .together = CHAINS,
};
