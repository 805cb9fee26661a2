/*
 * The C part of tlbprobe: its manual, and the one list of kernels.
 *
 *   region.c    mappings: aligned, advised, populated, scanned for proof
 *   cycle.c     random single cycles over sets of node addresses
 *   measure.c   the only clock, the only slice loop, the core-clock witness
 *   machine.c   what only this instruction set knows: tick counter, CPUID
 *   code.c      machine code that jumps, of both instruction sets on any machine (code.h)
 *   kernels/    one access pattern a file
 *   _core.c     the bridge: the only file that knows Python and NumPy
 *
 * Every function returns 0 or -errno unless it says otherwise. Nothing here is global, prints, exits,
 * or installs a signal handler; whoever calls owns all memory. Sizes are bytes, times are nanoseconds.
 */
#ifndef TLBPROBE_H
#define TLBPROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* -- Polling: work that lasts asks, every few milliseconds, whether to go on. ------------------------ */

struct tlb_poll {
    int (*ask)(void *context); /* 0 to go on, or the -errno to stop with; NULL never stops */
    void *context;
};

static inline int tlb_ask(const struct tlb_poll *poll)
{
    return poll->ask ? poll->ask(poll->context) : 0;
}

/* -- Regions: private anonymous memory under a page policy. ------------------------------------------ */

struct tlb_region {
    char *base;           /* first usable byte, aligned as asked; NULL while nothing is mapped */
    size_t size;          /* usable bytes: whole pages of the policy */
    size_t base_page;     /* the smallest translation unit: the step of touching and of passes */
    size_t page;          /* the page of the policy: no chunk of work is cut smaller */
    char *reserved;       /* the whole mapping with its inaccessible margins */
    size_t reserved_size; /* bytes */
    bool sparse;          /* as asked: most of it has no page */
};

struct tlb_region_request {
    size_t size;         /* a multiple of page and of base_page */
    size_t alignment;    /* a power of two of at least base_page; ignored for hugetlb, which aligns itself */
    size_t base_page;    /* a power of two */
    size_t page;         /* a power of two */
    unsigned huge_shift; /* log2 of the hugetlb page size, or 0 for ordinary memory */
    size_t piece;        /* keep the kernel from pages larger than this by splitting the mapping; 0 = whole */
    bool sparse; /* address space alone, more than there is memory: for whoever touches little of it */
};

struct tlb_scan {
    uint64_t present; /* bytes with a page in memory */
    uint64_t huge;    /* bytes mapped by PMD-sized pages or hugetlb */
    uint64_t zero;    /* bytes backed by the shared zero page */
    uint64_t swapped; /* bytes in swap */
};

/* Reserves the address range, inaccessible around the region; touches nothing. */
int tlb_region_map(struct tlb_region *region, const struct tlb_region_request *request);

/* Advice of madvise(2) for the whole region: before the first touch, or it changes nothing. */
int tlb_region_advise(struct tlb_region *region, int advice);

/* Writes to every base page, in address order or shuffled within windows; counts the minor faults. */
int tlb_region_touch(struct tlb_region *region, bool shuffled, uint64_t seed, uint64_t *faults,
                     const struct tlb_poll *poll);

/* Populates through the kernel: a shortage is -EFAULT or -ENOMEM, where a touch would be SIGBUS. */
int tlb_region_populate(struct tlb_region *region, const struct tlb_poll *poll);

/* Asks the kernel to make huge pages of what is there (MADV_COLLAPSE); success does not prove any. */
int tlb_region_collapse(struct tlb_region *region, const struct tlb_poll *poll);

/* One untimed pass: one read of every base page of a range, in address order. */
int tlb_region_pass(const struct tlb_region *region, size_t offset, size_t size, const struct tlb_poll *poll);

/* What the page table of this process holds for a range (PAGEMAP_SCAN); -ENOTTY before Linux 6.7. */
int tlb_region_scan(const struct tlb_region *region, size_t offset, size_t size, struct tlb_scan *scan);

/* Gives the memory back in chunks, then the range; after a stop it can be called again for the rest. */
int tlb_region_unmap(struct tlb_region *region, const struct tlb_poll *poll);

/* -- Cycles: one uniformly random single cycle of pointers. ------------------------------------------ */

/*
 * Node i lies in cell i, `spacing` bytes from the next; with k = first + i, on page s(k, pages) mod `pages`
 * of its cell and on line s(k, lines) mod `lines` of that page, where s(k, b) is the digit sum of k in base
 * b: that fills any power-of-two number of cache sets, and of TLB sets, evenly, also on physically contiguous
 * memory. A page has `lines` lines. With `offsets`, node i lies at base + offsets[i] instead.
 */
struct tlb_nodes {
    char *base;
    uint64_t count;          /* at least 1 */
    uint64_t spacing;        /* bytes, a multiple of 8 */
    uint64_t pages;          /* at least 1 */
    uint64_t lines;          /* at least 1 */
    uint64_t line;           /* bytes */
    uint64_t first;          /* 0, or what makes of them a part of a longer row of nodes */
    const uint64_t *offsets; /* bytes, multiples of 8; or NULL */
};

char *tlb_node(const struct tlb_nodes *nodes, uint64_t i);

/* Bytes from the base to the end of the furthest node; UINT64_MAX if that does not fit 64 bits. */
uint64_t tlb_nodes_span(const struct tlb_nodes *nodes);

/* Links the nodes: each holds the address of the next. The same count and seed give the same order of nodes
 * on every machine and wherever the nodes are, but for more than 2^32 of them less than three words apart,
 * which leave no room: those have an order of their own. Of nodes at most a page apart the whole span is
 * overwritten on the way; of others, and with offsets, nothing but the nodes is touched. */
int tlb_cycle_link(const struct tlb_nodes *nodes, uint64_t seed, const struct tlb_poll *poll);

/* The same for a cycle that visits all of a window of so many nodes before it goes on to another one: random
 * within windows, and in random order of the windows. */
int tlb_cycle_link_windows(const struct tlb_nodes *nodes, uint64_t window, uint64_t seed,
                           const struct tlb_poll *poll);

/* Walks from node 0 until it comes back, `limit` steps at most; returns the steps in *steps, 0 if it did not
 * come back or a pointer leaves the span. */
int tlb_cycle_walk(const struct tlb_nodes *nodes, uint64_t limit, uint64_t *steps,
                   const struct tlb_poll *poll);

/* -- Kernels: an access pattern is a value. ---------------------------------------------------------- */

enum {
    TLB_PARAMETERS = 12, /* the most parameters that a kernel may have */
    TLB_STATE = 16,      /* words of its own that a kernel may keep from one slice to the next */
};

struct tlb_run {
    const struct tlb_kernel *kernel;
    char *base;                         /* the bytes that the kernel may use ... */
    size_t size;                        /* ... and how many they are */
    uint64_t parameter[TLB_PARAMETERS]; /* in the order of kernel->parameters */
    uint64_t lap;                       /* set by prepare: accesses after which the pattern repeats, about */
    uint64_t state[TLB_STATE];          /* the kernel's own: where the next slice goes on */
    uint64_t expected, found;           /* counted by the accesses of kernels that check themselves: equal */
};

struct tlb_kernel {
    const char *name;                                                 /* the same string everywhere */
    const char *const *parameters;                                    /* names, NULL at the end */
    int (*prepare)(struct tlb_run *run, const struct tlb_poll *poll); /* -EINVAL: would leave its bytes */
    void (*access)(struct tlb_run *run, uint64_t accesses);           /* the timed part: memory only */
    /* Counts in memory what prepare put there; run->lap if all is whole. Damage is told, never followed.
     * NULL where there is nothing to count. */
    int (*verify)(struct tlb_run *run, uint64_t *found, const struct tlb_poll *poll);
    /* An untimed pass: one read of every page that it uses, in address order; NULL: of all its pages. */
    int (*pass)(struct tlb_run *run, const struct tlb_poll *poll);
    /* Undoes what prepare did beyond writing to its bytes; NULL: nothing. Called once, whatever prepare said.
     */
    void (*release)(struct tlb_run *run);
};

#define TLB_KERNELS(X) X(chase) X(stride) X(lookup) X(objects) X(jump)

#define TLB_DECLARE(name) extern const struct tlb_kernel tlb_kernel_##name;
TLB_KERNELS(TLB_DECLARE)
#undef TLB_DECLARE

/* -- Measuring: slices of one or of several prepared runs in turn. ----------------------------------- */

struct tlb_slice {
    uint64_t ns;     /* wall time of the accesses alone */
    uint64_t cpu_ns; /* CPU time of the thread around them, its own reading included */
    uint64_t minor;  /* page faults of the thread in between */
    uint64_t major;
    uint64_t switches; /* involuntary context switches */
};

enum { TLB_WITNESS_ADDS = 16384 }; /* dependent adds of one witness: one core cycle each */

/*
 * Times `slices` rounds; in each, one slice of accesses[r] accesses of every run r in turn. The result of
 * run r in round k is out[r * slices + k]; witness[k] is the time of the register-only loop before round k
 * and witness[slices] of the one after the last. Before a slice that another run's slice preceded, as
 * many accesses as a lap or a slice has, whichever is less, warm the caches untimed.
 */
int tlb_measure(struct tlb_run *const *runs, const uint64_t *accesses, size_t count, uint64_t slices,
                struct tlb_slice *out, uint64_t *witness, const struct tlb_poll *poll);

uint64_t tlb_clock_ns(void); /* CLOCK_MONOTONIC_RAW: no adjustment bends it */

/* One moment on three clocks: to check the first against the others. */
struct tlb_moment {
    uint64_t raw_ns;       /* the clock of every measurement */
    uint64_t monotonic_ns; /* CLOCK_MONOTONIC, which the system may slew */
    uint64_t ticks;        /* TSC or CNTVCT_EL0, 0 where there is none: ticks, never cycles */
};

void tlb_clock_moment(struct tlb_moment *moment);

struct tlb_clock_cost {
    double read_ns;   /* one read of the clock, the least of many */
    uint64_t step_ns; /* the smallest step it was seen to make */
};

void tlb_clock_calibrate(struct tlb_clock_cost *cost);

/* -- The instruction set. ------------------------------------------------------------------------------ */

uint64_t tlb_ticks(void);                                              /* 0 where there is no such counter */
int tlb_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]); /* -ENOSYS off x86 */

#endif
