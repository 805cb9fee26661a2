/*
 * The C part of tlbprobe: its manual, and the one list of kernels.
 *
 *   region.c    mappings: aligned, advised, populated, scanned for proof
 *   cycle.c     random single cycles over sets of node addresses
 *   clock.c     the only clock, what the system counts of a thread, the core-clock witness
 *   measure.c   the only slice loop
 *   child.c     work in a process of its own, and threads there
 *   touch.c     touches of pages, each with its own time, by one or more threads
 *   fault.c     what the first touch of a page costs, kind by kind
 *   shootdown.c what giving pages back costs the caller, and the threads on other CPUs
 *   counters.c  performance counters: groups of perf events
 *   counting.c  groups of counters around slices
 *   program.c   somebody else's program: started, held, let go, followed to its end
 *   machine.c   what only this instruction set knows: tick counter, CPUID
 *   code.c      machine code that jumps, of both instruction sets on any machine (code.h)
 *   kernels/    one access pattern a file
 *   simulated/  a model of a processor, in place of clock.c, counters.c and memory (simulated/model.h)
 *   python/     the bridge: the only files that know Python and NumPy
 *
 * Every function returns 0 or -errno unless it says otherwise. Nothing here is global, prints, exits,
 * or installs a signal handler; whoever calls owns all memory. Sizes are bytes, times are nanoseconds.
 */
#ifndef TLBPROBE_H
#define TLBPROBE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* -- Polling: work that lasts asks, every few milliseconds, whether to go on. ------------------------ */

struct tlb_poll {
    int (*ask)(void *context); /* 0 to go on, or the -errno to stop with; NULL never stops */
    void *context;
};

static inline int tlb_ask(const struct tlb_poll *poll)
{
    return poll->ask ? poll->ask(poll->context) : 0;
}

/* Once in so many steps. */
static inline int tlb_ask_at(uint64_t step, uint64_t every, const struct tlb_poll *poll)
{
    return step % every == 0 ? tlb_ask(poll) : 0;
}

/* -- Time: everything is timed by these functions of clock.c. ------------------------------------------ */

uint64_t tlb_clock_ns(void);      /* CLOCK_MONOTONIC_RAW: no adjustment bends it */
uint64_t tlb_clock_cpu_ns(void);  /* CPU time of this thread */
void tlb_clock_wait(uint64_t ns); /* sleeps for so long, or until a signal comes */

struct tlb_usage {         /* of this thread, since it began */
    uint64_t minor, major; /* page faults */
    uint64_t switches;     /* involuntary context switches */
};

struct tlb_usage tlb_clock_usage(void);

enum { TLB_WITNESS_ADDS = 16384 }; /* dependent adds of one witness: one core cycle each */

uint64_t tlb_clock_witness(void); /* the time of these, which no memory is needed for */

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
int tlb_region_advise(const struct tlb_region *region, int advice);

/* Writes to every base page, in address order or shuffled within windows; counts the minor faults. */
int tlb_region_touch(const struct tlb_region *region, bool shuffled, uint64_t seed, uint64_t *faults,
                     const struct tlb_poll *poll);

/* Populates through the kernel: a shortage is -EFAULT or -ENOMEM, where a touch would be SIGBUS. */
int tlb_region_populate(const struct tlb_region *region, const struct tlb_poll *poll);

/* Asks the kernel to make huge pages of what is there (MADV_COLLAPSE); success does not prove any. */
int tlb_region_collapse(const struct tlb_region *region, const struct tlb_poll *poll);

/* One untimed pass: one read of every base page of a range, in address order. */
int tlb_region_pass(const struct tlb_region *region, size_t offset, size_t size, const struct tlb_poll *poll);

/* What the page table of this process holds for a range (PAGEMAP_SCAN); -ENOTTY before Linux 6.7. */
int tlb_region_scan(const struct tlb_region *region, size_t offset, size_t size, struct tlb_scan *scan);

/* The same of a whole region, by whatever tells: returns 0 for PAGEMAP_SCAN, 1 for /proc/self/smaps, where
 * zero pages do not count. */
int tlb_region_look(const struct tlb_region *region, struct tlb_scan *scan);

/* Bytes of a region with a page that no other process maps (/proc/self/pagemap). */
int tlb_region_own(const struct tlb_region *region, uint64_t *bytes);

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
    /* The place among its parameters of how many accesses it begins at once; 0: one, so it is not the first
     * parameter. Where a slice ends after a multiple of these, the next one goes on as if there had been no
     * end. */
    size_t together;
};

/* The accesses of a run: all that is timed, and all that a model of a processor sees. Hardware is not
 * disturbed by questions, and this is 0 there; a model takes long enough to be asked in between. */
#ifdef TLB_SIMULATED
int tlb_run_access(struct tlb_run *run, uint64_t accesses, const struct tlb_poll *poll);
#else
static inline int tlb_run_access(struct tlb_run *run, uint64_t accesses, const struct tlb_poll *poll)
{
    (void)poll;
    run->kernel->access(run, accesses);
    return 0;
}
#endif

#define TLB_KERNELS(X) X(chase) X(stride) X(lookup) X(objects) X(jump) X(places)

#define TLB_DECLARE(name) extern const struct tlb_kernel tlb_kernel_##name;
TLB_KERNELS(TLB_DECLARE)
#undef TLB_DECLARE

/* -- Counters: groups of perf events. ------------------------------------------------------------------ */

enum { TLB_EVENTS = 16 }; /* in a group at most: hardly a processor has room for more at once */

struct tlb_event {
    uint32_t type; /* these four as in struct perf_event_attr */
    uint64_t config, config1, config2;
};

struct tlb_counters_request {
    const struct tlb_event *events; /* the first one leads */
    size_t count;                   /* 1 to TLB_EVENTS */
    pid_t pid;                      /* whose thread: 0 is the calling one */
    bool exclude_kernel;            /* count user space alone */
    bool inherit;                   /* and what it will have started */
    bool enable_on_exec;            /* begin when it turns into another program */
};

struct tlb_counters {
    size_t count;  /* events that are open */
    pid_t owner;   /* the process that opened them ... */
    pid_t thread;  /* ... and the thread that is counted */
    bool together; /* one read returns them all */
    bool hardware; /* some event is not software's: it may have to wait for a counter */
    int fd[TLB_EVENTS];
    uint64_t id[TLB_EVENTS];
    void *page[TLB_EVENTS]; /* of the kernel, to read without it; or NULL */
};

struct tlb_reading {
    uint64_t enabled_ns; /* since the start */
    uint64_t running_ns; /* of it, with counters: where it is 0 the values are missing, not zero */
    uint64_t value[TLB_EVENTS];
};

/* Opens a group, stopped. After an error `count` says which event failed; close it then too. */
int tlb_counters_open(struct tlb_counters *counters, const struct tlb_counters_request *request);
void tlb_counters_close(struct tlb_counters *counters);

int tlb_counters_enable(const struct tlb_counters *counters);
int tlb_counters_disable(const struct tlb_counters *counters);
int tlb_counters_reset(const struct tlb_counters *counters); /* the values, not the times */
int tlb_counters_read(const struct tlb_counters *counters, struct tlb_reading *reading);

/* The same without a system call, for the calling thread; -EAGAIN where the kernel does not allow that, or an
 * event has no counter at the moment. */
int tlb_counters_peek(const struct tlb_counters *counters, struct tlb_reading *reading);

/* Value of a counter register of this core; false where there is none of that number. */
typedef bool tlb_register_reader(uint32_t number, uint64_t *value);
bool tlb_counter_register(uint32_t number, uint64_t *value);

struct tlb_peek {
    uint64_t enabled_ns, running_ns, value;
};

/* One event, by its page (struct perf_event_mmap_page). */
int tlb_counter_peek(const void *page, tlb_register_reader *reader, struct tlb_peek *peek);

/*
 * Groups to be read around slices. Those of software count in every round; the others take turns, a round
 * each, since the kernel's own turns are longer than a slice. A slice has a row of columns: for each group
 * its enabled_ns, its running_ns and its values; all zero where the group had no turn.
 */
struct tlb_counting {
    struct tlb_counters *const *groups; /* software first: what is read last is read next to the slice */
    size_t count;
    uint64_t *rows; /* run r, round k: row r * slices + k */
    uint64_t *cost; /* one more row, of zeros at first */
};

size_t tlb_counting_width(const struct tlb_counting *counting);   /* columns of a row */
uint64_t tlb_counting_turns(const struct tlb_counting *counting); /* rounds after which all had a turn */

/* Starts what counts in a round and stops what does not; the rounds come one after the other from 0. */
int tlb_counting_turn(const struct tlb_counting *counting, uint64_t round);
void tlb_counting_stop(const struct tlb_counting *counting);

/* Before and after what is counted. The row is cleared earlier: writing to it may fault. */
void tlb_counting_clear(const struct tlb_counting *counting, uint64_t *row);
int tlb_counting_begin(const struct tlb_counting *counting, uint64_t round, uint64_t *row);
int tlb_counting_end(const struct tlb_counting *counting, uint64_t round, uint64_t *row);

/* What a slice of nothing counted, and taking it away from a row. */
void tlb_counting_learn(const struct tlb_counting *counting, const uint64_t *row);
void tlb_counting_discount(const struct tlb_counting *counting, uint64_t *row);

/* -- Measuring: slices of one or of several prepared runs in turn. ----------------------------------- */

struct tlb_slice {
    uint64_t ns;     /* wall time of the accesses alone */
    uint64_t cpu_ns; /* CPU time of the thread around them, its own reading included */
    uint64_t minor;  /* page faults of the thread in between */
    uint64_t major;
    uint64_t switches; /* involuntary context switches */
};

/*
 * Times `slices` rounds; in each, one slice of accesses[r] accesses of every run r in turn. The result of
 * run r in round k is out[r * slices + k]; witness[k] is the time of the register-only loop before round k
 * and witness[slices] of the one after the last. Before a slice that another run's slice preceded, as
 * many accesses as a lap or a slice has, whichever is less, warm the caches untimed. With `counting`, what
 * the accesses of each slice counted is in its rows: without what reading clocks and counters itself counts.
 */
int tlb_measure(struct tlb_run *const *runs, const uint64_t *accesses, size_t count, uint64_t slices,
                struct tlb_slice *out, uint64_t *witness, const struct tlb_counting *counting,
                const struct tlb_poll *poll);

/* -- Children: work in a process of its own, whose end takes everything with it. ---------------------- */

struct tlb_child {
    int status;    /* what the work returned; -ECHILD: it did not come to its end */
    int killed_by; /* the signal that ended it, or 0 */
};

/*
 * Runs work in a forked process, which dies with the thread that asked for it; returns its status. The child
 * lies in memory that both share. What other threads of the caller held stays locked there: the work has no
 * heap, nor anything that needs one.
 */
int tlb_in_child(int (*work)(void *context), void *context, struct tlb_child *child,
                 const struct tlb_poll *poll);

pid_t tlb_fork(void); /* as fork(2), but no handlers of the caller's libraries run */

/* A thread that is made without a heap. It shares errno and the like with the one that starts it, who does
 * nothing but wait for it, or calls the system alone. */
struct tlb_thread {
    void (*work)(void *context);
    void *context;
    _Atomic bool ended;
};

int tlb_thread_start(struct tlb_thread *thread);
void tlb_thread_wait(struct tlb_thread *thread);
int tlb_run_on(int cpu); /* this thread alone; -1: anywhere */

/* -- Touches: single accesses, each with its own time. ----------------------------------------------- */

enum { TLB_THREADS = 64 }; /* the most at once */

/* Of functions whose page faults count: AddressSanitizer would have some of its own beside each of ours. */
#define TLB_UNSANITIZED __attribute__((no_sanitize("address")))

struct tlb_faults { /* page faults of this thread: what there were at the beginning, then the difference */
    uint64_t minor, major;
};

void tlb_faults_begin(struct tlb_faults *faults);
void tlb_faults_end(struct tlb_faults *faults);

struct tlb_touches {
    char *base;
    uint64_t step;         /* bytes from one page to the next */
    const uint32_t *order; /* the page that each touch is to; NULL: in address order */
    bool write;
    uint64_t count;   /* touches: whole blocks */
    uint64_t block;   /* touches that share one time */
    unsigned threads; /* 1 .. TLB_THREADS: each does a part of them, one after the other */
    const int *cpus;  /* [threads] to run on; NULL: anywhere */
    uint64_t *ns;     /* [count / block]: nanoseconds of each block, one read of the clock included */
};

struct tlb_touched {
    struct tlb_faults faults;
    uint64_t overhead_ns; /* what the clock put into every time */
    uint64_t wall_ns;     /* from the first thread's begin to the last one's end */
};

int tlb_touch(const struct tlb_touches *touches, struct tlb_touched *touched);

/* What reading the clock puts into a time: the median of touches that cost nothing. It brings in code, stack
 * and what else a timed part needs, so that this causes no fault in it. */
uint64_t tlb_clock_overhead(void);

uint64_t tlb_median(uint64_t *values, size_t count); /* sorts them */

/* -- Faults: what the first touch of a page costs. ---------------------------------------------------- */

/* clang-format off */
#define TLB_FAULT_KINDS(X)                                                       \
    X(read) X(write) X(write_after_read) X(second)                               \
    X(fill) X(populate_write) X(map_populate)                                    \
    X(refault_dontneed) X(refault_free) X(fork_parent) X(fork_child)             \
    X(file) X(pread)
/* clang-format on */

enum tlb_fault_kind {
#define TLB_ENTRY(name) TLB_FAULT_##name,
    TLB_FAULT_KINDS(TLB_ENTRY)
#undef TLB_ENTRY
};

/* Bytes of a process by /proc/self/statm; 0: unknown. Linux counts resident ones in batches a CPU. */
struct tlb_memory {
    uint64_t size, resident;
};

/* Lies in memory that is shared with the process that does the work, as ns, after and order do. */
struct tlb_fault {
    enum tlb_fault_kind kind;
    struct tlb_region_request request;
    int advice;       /* of madvise(2), before the first touch; -1: none */
    bool without_thp; /* transparent huge pages are refused to the process: for what advice cannot reach */
    int fd;           /* of a file to be mapped instead of anonymous memory; -1: none */
    bool shared;      /* how a file is mapped */
    uint64_t chunk;   /* bytes of one time where touches have none: filling and populating */
    uint64_t times;   /* in touches.ns: of chunks, or of blocks of touches */
    struct tlb_touches touches; /* base is set here */
    uint64_t *after;            /* [touches.count]: the first access to each page after populating, or NULL */

    struct tlb_child child;
    const char *failed; /* the step that a negative status is of */
    char *buffer;       /* of pread(2) */
    uint64_t map_ns, prepare_ns, discard_ns, fork_ns, unmap_ns;
    struct tlb_faults prepared;       /* by touches before the timed part */
    struct tlb_touched touched;       /* the timed part */
    struct tlb_touched touched_after; /* ... and the accesses after populating */
    uint64_t cached;                  /* bytes of a file in the page cache before; UINT64_MAX: unknown */
    uint64_t zero;                    /* bytes of zero pages before they are written; UINT64_MAX: unknown */
    uint64_t copied;                  /* bytes no longer shared after a fork; UINT64_MAX: unknown */
    struct tlb_scan scan;             /* pages of the whole region at the end */
    int scan_status;                  /* of it; 1: by smaps */
    bool looked; /* scan, copied and touched_memory are those of the process that touched last */
    struct tlb_memory before, mapped, touched_memory;
};

/* Does it in a process of its own: see tlb_in_child. */
int tlb_fault(struct tlb_fault *fault, const struct tlb_poll *poll);

/* -- Shootdowns: what taking pages away costs. -------------------------------------------------------- */

enum tlb_shootdown_kind { TLB_UNMAP, TLB_PROTECT, TLB_DONTNEED };

/* Lies in memory that is shared with the process that does the work, as ns and others do. */
struct tlb_shootdown {
    enum tlb_shootdown_kind kind;
    struct tlb_region_request request;
    int advice;            /* of madvise(2), before the first touch; -1: none */
    uint64_t step;         /* bytes of one call */
    uint64_t calls;        /* each on the next bytes of the region */
    unsigned threads;      /* others, 0 .. TLB_THREADS - 1, that go on reading memory of their own */
    int cpus[TLB_THREADS]; /* of the caller, then of the others; -1: anywhere */
    uint64_t *ns;          /* [calls]: the caller's time */
    uint64_t *others;      /* [threads * calls]: the longest round of a thread that a call fell into */

    struct tlb_child child;
    const char *failed;             /* the step that a negative status is of */
    uint64_t map_ns, populate_ns;   /* before the calls */
    struct tlb_faults faults;       /* of populating */
    struct tlb_scan scan;           /* pages of the whole region before the calls */
    int scan_status;                /* of it; 1: by smaps */
    uint64_t overhead_ns;           /* of one reading of the clock, in every time of the caller */
    uint64_t quiet_ns[TLB_THREADS]; /* a round of each thread with no call in it: the median of many */
};

/* Does it in a process of its own: see tlb_in_child. */
int tlb_shootdown(struct tlb_shootdown *shootdown, const struct tlb_poll *poll);

/* -- Programs: somebody else's, started and followed. ------------------------------------------------ */

struct tlb_program {
    char *const *paths;       /* what to execute: the first of them that there is; NULL at the end */
    char *const *arguments;   /* NULL at the end */
    char *const *environment; /* NULL at the end */
    int streams[3];       /* descriptors above 2 to become standard input, output and error; -1: as it is */
    unsigned long thp[2]; /* the two arguments of PR_SET_THP_DISABLE; 0, 0: as it is */
    int go, report;       /* its ends of two pipes, which close on exec */
};

enum tlb_stage { TLB_HELD, TLB_REDIRECTING, TLB_FORBIDDING, TLB_EXECUTING };

/* What a program said before it became one, and what its process had used until then. */
struct tlb_start {
    uint64_t ns; /* by tlb_clock_ns */
    uint64_t user_us, system_us, minor, major, voluntary, involuntary;
    uint64_t peak;  /* resident bytes: what it has of its parent, which later peaks never fall below */
    uint64_t stage; /* enum tlb_stage: what it did last */
    uint64_t error; /* errno of that; 0: it has begun */
};

/* Makes the process, which waits for tlb_program_go. It ends with the thread that made it. */
int tlb_program_launch(const struct tlb_program *program, pid_t *pid);

/* Lets it go, by our ends of the two pipes, and waits until it has begun or says why it could not. */
int tlb_program_go(int go, int report, struct tlb_start *start);

enum tlb_ending { TLB_EXITING, TLB_ENDED };

/* From now on it stops before it exits: still whole. This thread alone may wait for it then, and resume it.
 */
int tlb_program_trace(pid_t pid);
int tlb_program_resume(pid_t pid);

/* Waits until it stops before its exit, or has ended and is to be reaped; *ns is when. */
int tlb_program_wait(pid_t pid, enum tlb_ending *event, uint64_t *ns);

/* -- The instruction set. ------------------------------------------------------------------------------ */

uint64_t tlb_ticks(void);                                              /* 0 where there is no such counter */
int tlb_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]); /* -ENOSYS off x86 */

#endif
