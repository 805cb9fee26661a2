/*
 * A processor that is known: a model of TLBs, page walks, caches and overlap in time, which stands in for the
 * clock and for memory. Kernels that a compiler has instrumented drive it by their loads and stores
 * (hooks.c); what they would have taken, in nanoseconds, is read from its clock (clock.c).
 *
 *   model.c     making and freeing, mapped ranges, counters
 *   config.c    what a configuration must be, and what is wrong with one that is not
 *   sets.c      sets of entries: plain, folded and hashed index; LRU, tree-PLRU, random
 *   walk.c      translation: levels of TLBs, page-walk caches, page tables
 *   cache.c     caches, physically indexed
 *   pipeline.c  one access after the other: what waits for what
 *   noise.c     time: the core clock, and disturbance as processes
 *   hooks.c     what instrumented code calls
 *   clock.c     the clocks of the core
 *   counters.c  its counters, in groups as those of perf events
 *
 * Order: state (what a TLB or a cache holds) changes in the order of the program, times are those of an
 * out-of-order processor. Left out: what only the instruction stream knows (branches, ports, instructions
 * between accesses), prefetchers, write-back traffic, bandwidth beyond the number of misses in flight, and
 * exclusive, inclusive, skewed, coalesced and nested structures: a miss fills every level that it missed, and
 * nothing is taken away elsewhere.
 *
 * The same configuration, mappings and accesses give the same times, to the tick: where memory really lies
 * does not matter, since every mapped range gets an address of the model's own.
 */
#ifndef TLB_MODEL_H
#define TLB_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    TLB_MODEL_TLBS = 8,       /* levels, of both sides together */
    TLB_MODEL_ARRAYS = 4,     /* of a level */
    TLB_MODEL_PAGES = 8,      /* sizes that one array holds */
    TLB_MODEL_CACHES = 8,     /* of both sides together */
    TLB_MODEL_LEVELS = 5,     /* of a page table */
    TLB_MODEL_BURSTS = 4,     /* processes that make bursts */
    TLB_MODEL_NEIGHBOURS = 8, /* processes that take entries */
    TLB_MODEL_TEXT = 160,     /* bytes of what is wrong with a configuration */
};

enum tlb_model_side { TLB_SIDE_DATA = 1, TLB_SIDE_CODE = 2, TLB_SIDE_BOTH = 3 };

/*
 * The set of a page or line number n, of S = 2^b sets:
 *   plain   n mod S, also where S is no power of two
 *   folded  (n ^ n >> b) mod S: two groups of b bits
 *   hashed  the exclusive or of all groups of b bits of n
 */
enum tlb_model_index { TLB_INDEX_PLAIN, TLB_INDEX_FOLDED, TLB_INDEX_HASHED };

enum tlb_model_replacement { TLB_REPLACE_LRU, TLB_REPLACE_PLRU, TLB_REPLACE_RANDOM };

/* -- The configuration: nothing but doubles, so that a flat list of numbers fills it in this order. Zero is
 * "none" where there may be none. Latencies are core cycles. ------------------------------------------- */

struct tlb_model_sets {
    double entries;     /* 0: there is none */
    double ways;        /* 0: fully associative */
    double index;       /* enum tlb_model_index */
    double replacement; /* enum tlb_model_replacement; PLRU: a power of two of ways */
};

/* Entries for one page size or for several that share them. A page that is larger than all that a level holds
 * takes an entry of the largest size below its own; a level that holds nothing as small never hits. */
struct tlb_model_array {
    struct tlb_model_sets sets;
    double pages[TLB_MODEL_PAGES]; /* bytes; 0 after the last */
};

struct tlb_model_tlb {
    double side;   /* enum tlb_model_side; 0: no more levels. In the order in which they are looked up. */
    double cycles; /* of a hit, more than a hit in the first level costs */
    struct tlb_model_array arrays[TLB_MODEL_ARRAYS];
};

struct tlb_model_cache {
    double side;        /* enum tlb_model_side; 0: no more levels */
    double size;        /* bytes */
    double line;        /* bytes, a power of two */
    double ways;        /* 0: fully associative */
    double index;       /* enum tlb_model_index, of the physical line number */
    double replacement; /* enum tlb_model_replacement */
    double cycles;      /* load to use, where it hits */
};

struct tlb_model_walk {
    double levels;  /* of the page table, 3 to 5; a table is a base page of 8-byte entries */
    double walkers; /* walks at once */
    double cycles;  /* of a walk beyond its loads; the levels that missed are in it */
    double cache;   /* the first of the data's caches that tables are loaded through, from 0 */
    /* Page-walk caches: [0] holds entries that point to the lowest tables (those of a PDE), [1] to the tables
     * above (a PDPTE), and so on. Looked up from [0] on: a hit leaves one load more for each step up. */
    struct tlb_model_sets upper[TLB_MODEL_LEVELS - 1];
};

struct tlb_model_overlap {
    double window; /* accesses that are under way at once; they retire in order */
    double misses; /* lines that are under way to the first data cache */
    double stores; /* that have retired and wait for their line */
    double cycles; /* from one access to the next: 0.5 is two a cycle */
    double ahead;  /* jumps whose code is fetched before the first of them is done; 1: one after the other */
    double jump_cycles; /* from one jump to the next */
};

/* Begins at random, `rate` times a second of quiet, and lasts a time uniform between the two. */
struct tlb_model_burst {
    double rate;              /* a second; 0: none */
    double least_ms, most_ms; /* of its duration */
    double factor;            /* of every latency and interval of accesses meanwhile; at least 1 */
    double added_ns;          /* to the latency of every access */
    double stolen;            /* share of wall time, below 1, that the thread does not have the CPU */
};

/* Latencies and intervals times 1 + amplitude * |x|, x normal with a memory: AR(1), sixteen steps in it. */
struct tlb_model_drift {
    double amplitude; /* 0: none */
    double memory_ms;
};

/* The core clock goes down by a factor and up again, after times uniform in 0.5 to 1.5 of `every_ms`. */
struct tlb_model_steps {
    double every_ms; /* 0: never */
    double factor;   /* of the clock, in 0 to 1 */
};

/* An entry at random, of any set, becomes somebody else's. */
struct tlb_model_neighbour {
    double cycles; /* from one to the next, at the full core clock; 0: none */
    double cache;  /* 0: of a TLB, 1: of a cache */
    double level;  /* which one in its list, from 0; of a TLB all arrays in turn */
};

struct tlb_model_config {
    double ghz;           /* of the core */
    double clock_ns;      /* what reading the clock takes */
    double clock_step_ns; /* the clock is a multiple of it */
    double seed;          /* a whole number below 2^53 */
    double base_page;     /* bytes: 4096, 16384, 65536 */
    double contiguous;    /* 1: frames lie as the pages do; 0: base pages, tables and larger pages anywhere */
    double memory_cycles; /* load to use, where no cache hits */
    struct tlb_model_overlap overlap;
    struct tlb_model_walk walk;
    struct tlb_model_tlb tlb[TLB_MODEL_TLBS];
    struct tlb_model_cache cache[TLB_MODEL_CACHES];
    struct tlb_model_burst burst[TLB_MODEL_BURSTS];
    struct tlb_model_drift drift;
    struct tlb_model_steps steps;
    struct tlb_model_neighbour neighbour[TLB_MODEL_NEIGHBOURS];
};

struct tlb_model;

/* -EINVAL: `text` names what is wrong; -ENOMEM. */
int tlb_model_create(const struct tlb_model_config *config, struct tlb_model **model,
                     char text[TLB_MODEL_TEXT]);
void tlb_model_free(struct tlb_model *model);

/* -- Memory: ranges that a kernel may run in. -------------------------------------------------- */

/* Bytes from `base` on, in pages of true_page bytes: the TLB's entries, frames and tables are of these.
 * `page` is what the owner was promised: a larger one aligns the range. -EINVAL: not a power of two, or less
 * than a base page; -EEXIST: overlaps another range; -ENOSPC: no addresses are left. */
int tlb_model_map(struct tlb_model *model, uint64_t base, uint64_t size, uint64_t page, uint64_t true_page);
int tlb_model_unmap(struct tlb_model *model, uint64_t base); /* -ENOENT */

/* -- Accesses: of a run whose bytes lie within one range. -------------------------------------- */

int tlb_model_enter(struct tlb_model *model, uint64_t base, uint64_t size); /* -EFAULT: not mapped */
void tlb_model_leave(struct tlb_model *model);

/* Addresses outside of the run's bytes are ignored. `value` is what is loaded: an access to the word, or to
 * the line, that it points to waits for it. 0: nothing that points anywhere. */
void tlb_model_load(struct tlb_model *model, uint64_t address, uint64_t value);
void tlb_model_store(struct tlb_model *model, uint64_t address);
void tlb_model_prefetch(struct tlb_model *model, uint64_t address);
void tlb_model_jump(struct tlb_model *model, uint64_t address); /* fetches a line of code there */

/* -- Time. ------------------------------------------------------------------------------------- */

/* Wall and CPU time since the model was made. All that is in flight ends first; takes clock_ns. */
uint64_t tlb_model_ns(struct tlb_model *model);
uint64_t tlb_model_cpu_ns(struct tlb_model *model);

double tlb_model_now(struct tlb_model *model); /* wall time that nobody reads: all of it, and for nothing */

void tlb_model_advance(struct tlb_model *model, uint64_t ns);     /* waits: no CPU time passes */
void tlb_model_compute(struct tlb_model *model, uint64_t cycles); /* works in registers alone */

/* -- Counters: exact, since the model was made. ------------------------------------------------ */

struct tlb_model_counters {
    uint64_t loads, stores, prefetches, jumps;
    uint64_t tlb_hits[2][TLB_MODEL_TLBS]; /* [0] data, [1] code; by place in the configuration */
    uint64_t tlb_misses[2][TLB_MODEL_TLBS];
    uint64_t walks[2];                            /* completed */
    uint64_t walk_loads;                          /* of table entries */
    uint64_t walk_pending;                        /* cycles of all walks, added up */
    uint64_t walk_active;                         /* cycles in which any walk was under way */
    uint64_t cache_hits[3][TLB_MODEL_CACHES + 1]; /* of data, code, tables; the last one is memory */
    uint64_t cycles;                              /* of the core, but for those that it waited */
};

enum {
    TLB_MODEL_COUNTERS = sizeof(struct tlb_model_counters) / sizeof(uint64_t),
    TLB_MODEL_NAME = 24, /* bytes of a counter's name, with its end */
};

/* Of the counter that is the n-th word: "loads", "tlb_hits.code.0", "cache_hits.tables.8", "walks.data". */
void tlb_model_counter_name(unsigned number, char name[TLB_MODEL_NAME]);

/* Ends what is in flight first. */
void tlb_model_count(struct tlb_model *model, struct tlb_model_counters *counters);

#endif
