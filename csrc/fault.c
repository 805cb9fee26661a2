/*
 * What the first touch of a page costs: one kind of fault after another, each prepared, timed touch by touch
 * and undone in a process of its own, whose memory starts fresh and whose end takes everything with it.
 *
 * Not a kernel: a page can be touched for the first time only once, and forks and files are no loops over
 * memory. The clock is that of clock.c.
 */
#include "tlbprobe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ADVICE_POPULATE_WRITE = 23 }; /* Linux 5.14; not in every libc that we may be built against */

static int failed(struct tlb_fault *fault, const char *step, int status)
{
    if (status < 0 && !fault->failed)
        fault->failed = step;
    return status;
}

static uint64_t since(uint64_t start)
{
    return tlb_clock_ns() - start;
}

/* -- Memory -------------------------------------------------------------------------------------------- */

/* Unknown, which is zero, where there is no /proc. */
static struct tlb_memory memory_now(uint64_t page)
{
    char text[128] = {0};
    struct tlb_memory memory = {0};
    int const file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return memory;
    if (read(file, text, sizeof(text) - 1) > 0) {
        char *end;
        memory.size = strtoull(text, &end, 10) * page;
        memory.resident = strtoull(end, NULL, 10) * page;
    }
    close(file);
    return memory;
}

static int map_file(struct tlb_fault *fault, struct tlb_region *region)
{
    int const protection = fault->touches.write ? PROT_READ | PROT_WRITE : PROT_READ;
    char *const base =
        mmap(NULL, fault->request.size, protection, fault->shared ? MAP_SHARED : MAP_PRIVATE, fault->fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    *region = (struct tlb_region){.base = base,
                                  .size = fault->request.size,
                                  .base_page = fault->request.base_page,
                                  .page = fault->request.page,
                                  .reserved = base,
                                  .reserved_size = fault->request.size};
    return 0;
}

static int map(struct tlb_fault *fault, struct tlb_region *region)
{
    uint64_t const start = tlb_clock_ns();
    int status = fault->fd < 0 ? tlb_region_map(region, &fault->request) : map_file(fault, region);
    if (status == 0 && fault->advice >= 0)
        status = tlb_region_advise(region, fault->advice);
    fault->map_ns = since(start);
    return failed(fault, "mapping", status);
}

/* Bytes of a mapped file that are in the page cache. */
static uint64_t cached(const struct tlb_region *region)
{
    enum { PAGES = 4096 };
    unsigned char vector[PAGES];
    uint64_t found = 0;
    for (size_t at = 0; at < region->size; at += PAGES * region->base_page) {
        size_t const left = region->size - at;
        size_t const size = left < PAGES * region->base_page ? left : PAGES * region->base_page;
        if (mincore(region->base + at, size, vector) < 0)
            return UINT64_MAX;
        for (size_t i = 0; i < size / region->base_page; i++)
            found += (vector[i] & 1) * region->base_page;
    }
    return found;
}

/* Touches that are not timed, to prepare those that are: the same ones, or of every page. */
TLB_UNSANITIZED static void touch_untimed(struct tlb_fault *fault, bool write, bool every_page)
{
    struct tlb_faults faults;
    const struct tlb_touches *const touches = &fault->touches;
    uint64_t const page = fault->request.base_page;
    uint64_t const step = every_page ? page : touches->step;
    uint64_t const count = every_page ? fault->request.size / page : touches->count;
    uint64_t const start = tlb_clock_ns();
    tlb_faults_begin(&faults);
    for (uint64_t i = 0; i < count; i++) {
        volatile char *const at = touches->base + i * step;
        if (write)
            *at = 1;
        else
            (void)*at;
    }
    tlb_faults_end(&faults);
    fault->prepared.minor += faults.minor;
    fault->prepared.major += faults.major;
    fault->prepare_ns += since(start);
}

/* What is shared with a forked process is not in its page table: its first use there is a fault too. */
static void touch_records(struct tlb_fault *fault)
{
    const struct tlb_touches *const touches = &fault->touches;
    uint64_t sum = 0;
    for (uint64_t i = 0; touches->order && i < touches->count; i++)
        sum += touches->order[i];
    memset(touches->ns, 0, fault->times * sizeof(*touches->ns));
    if (fault->after)
        memset(fault->after, 0, touches->count * sizeof(*fault->after));
    *(volatile uint64_t *)touches->ns = sum;
}

static int touch(struct tlb_fault *fault)
{
    return failed(fault, "touching", tlb_touch(&fault->touches, &fault->touched));
}

/* -- Kinds: prepare, then the timed part ------------------------------------------------------------- */

/* What the touches have left. */
static void look(struct tlb_fault *fault, const struct tlb_region *region)
{
    fault->looked = true;
    fault->touched_memory = memory_now(fault->request.base_page);
    fault->scan_status = tlb_region_look(region, &fault->scan);
}

static void look_at_copies(struct tlb_fault *fault, const struct tlb_region *region)
{
    look(fault, region);
    if (tlb_region_own(region, &fault->copied) < 0)
        fault->copied = UINT64_MAX;
}

static int do_read(struct tlb_fault *fault, struct tlb_region *region)
{
    (void)region;
    return touch(fault);
}

static int do_write(struct tlb_fault *fault, struct tlb_region *region)
{
    (void)region;
    return touch(fault);
}

static int do_file(struct tlb_fault *fault, struct tlb_region *region)
{
    (void)region;
    return touch(fault);
}

static int do_write_after_read(struct tlb_fault *fault, struct tlb_region *region)
{
    struct tlb_scan scan;
    touch_untimed(fault, false, false);
    fault->zero = tlb_region_scan(region, 0, region->size, &scan) < 0 ? UINT64_MAX : scan.zero;
    return touch(fault);
}

static int do_second(struct tlb_fault *fault, struct tlb_region *region)
{
    (void)region;
    touch_untimed(fault, true, false);
    touch_untimed(fault, true, false); /* under a hypervisor the second touch may be another first one */
    return touch(fault);
}

/* One time for each piece of work that is not a touch of ours. */
static int time_pieces(struct tlb_fault *fault, const char *step,
                       int (*work)(const struct tlb_fault *fault, uint64_t piece))
{
    struct tlb_touched *const touched = &fault->touched;
    int status = 0;
    touched->overhead_ns = tlb_clock_overhead();
    tlb_faults_begin(&touched->faults);
    uint64_t const start = tlb_clock_ns();
    for (uint64_t i = 0, last = start; i < fault->times && status == 0; i++) {
        status = work(fault, i);
        uint64_t const now = tlb_clock_ns();
        fault->touches.ns[i] = now - last;
        last = now;
    }
    touched->wall_ns = since(start);
    tlb_faults_end(&touched->faults);
    return failed(fault, step, status);
}

static int touch_after(struct tlb_fault *fault)
{
    struct tlb_touches touches = fault->touches;
    touches.ns = fault->after;
    return failed(fault, "touching", tlb_touch(&touches, &fault->touched_after));
}

static uint64_t chunk_size(const struct tlb_fault *fault, uint64_t chunk)
{
    uint64_t const left = fault->request.size - chunk * fault->chunk;
    return left < fault->chunk ? left : fault->chunk;
}

static int fill_chunk(const struct tlb_fault *fault, uint64_t chunk)
{
    memset(fault->touches.base + chunk * fault->chunk, 1, chunk_size(fault, chunk));
    return 0;
}

static int do_fill(struct tlb_fault *fault, struct tlb_region *region)
{
    (void)region;
    return time_pieces(fault, "filling", fill_chunk);
}

static int populate_chunk(const struct tlb_fault *fault, uint64_t chunk)
{
    char *const base = fault->touches.base + chunk * fault->chunk;
    return madvise(base, chunk_size(fault, chunk), ADVICE_POPULATE_WRITE) < 0 ? -errno : 0;
}

static int do_populate_write(struct tlb_fault *fault, struct tlb_region *region)
{
    (void)region;
    int const status = time_pieces(fault, "populating", populate_chunk);
    return status < 0 ? status : touch_after(fault);
}

/* Over the range that is mapped already, which is aligned: all of it at once. */
static int map_populated(const struct tlb_fault *fault, uint64_t all)
{
    (void)all;
    unsigned const shift = fault->request.huge_shift;
    int const huge = shift ? MAP_HUGETLB | (int)(shift << MAP_HUGE_SHIFT) : 0;
    int const flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE | huge;
    const void *const base =
        mmap(fault->touches.base, fault->request.size, PROT_READ | PROT_WRITE, flags, -1, 0);
    return base == MAP_FAILED ? -errno : 0;
}

static int do_map_populate(struct tlb_fault *fault, struct tlb_region *region)
{
    if (fault->request.huge_shift) /* its pages are reserved for the old mapping until it goes */
        munmap(region->base, region->size);
    int const status = time_pieces(fault, "mapping and populating", map_populated);
    return status < 0 ? status : touch_after(fault);
}

static int discard(struct tlb_fault *fault, struct tlb_region *region, int advice)
{
    touch_untimed(fault, true, false);
    uint64_t const start = tlb_clock_ns();
    int const status = tlb_region_advise(region, advice);
    fault->discard_ns = since(start);
    return status < 0 ? failed(fault, "discarding", status) : touch(fault);
}

static int do_refault_dontneed(struct tlb_fault *fault, struct tlb_region *region)
{
    return discard(fault, region, MADV_DONTNEED);
}

static int do_refault_free(struct tlb_fault *fault, struct tlb_region *region)
{
    return discard(fault, region, MADV_FREE);
}

/* 0 in the new process, its number in the old one. Every page is there, and shared, before any is written. */
static pid_t fork_timed(struct tlb_fault *fault, struct tlb_region *region)
{
    pid_t const parent = getpid();
    touch_untimed(fault, true, true);
    if (madvise(region->base, region->size, MADV_DOFORK) < 0) /* regions are not inherited otherwise */
        return failed(fault, "forking", -errno);
    uint64_t const start = tlb_clock_ns();
    pid_t const child = tlb_fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
        return 0;
    }
    fault->fork_ns = since(start);
    return child < 0 ? failed(fault, "forking", -errno) : child;
}

static int do_fork_parent(struct tlb_fault *fault, struct tlb_region *region)
{
    pid_t const child = fork_timed(fault, region);
    if (child < 0)
        return child;
    while (child == 0)
        pause(); /* holds the pages until it is killed */
    int const status = touch(fault);
    look_at_copies(fault, region);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return status;
}

static int do_fork_child(struct tlb_fault *fault, struct tlb_region *region)
{
    int ended;
    pid_t const child = fork_timed(fault, region);
    if (child < 0)
        return child;
    if (child == 0) {
        touch_records(fault);
        int const status = touch(fault);
        look_at_copies(fault, region);
        _exit(-status);
    }
    if (waitpid(child, &ended, 0) < 0)
        return failed(fault, "forking", -errno);
    if (WIFSIGNALED(ended)) /* ours is the end that the caller sees */
        kill(getpid(), WTERMSIG(ended));
    return WIFEXITED(ended) ? -WEXITSTATUS(ended) : -ECHILD;
}

static int read_page(const struct tlb_fault *fault, uint64_t touch)
{
    const struct tlb_touches *const touches = &fault->touches;
    uint64_t const at = (touches->order ? touches->order[touch] : touch) * touches->step;
    ssize_t const read = pread(fault->fd, fault->buffer, fault->request.base_page, (off_t)at);
    return read > 0 ? 0 : read < 0 ? -errno : -ENODATA;
}

/* Without the mapping, to compare one with. */
static int do_pread(struct tlb_fault *fault, struct tlb_region *region)
{
    fault->buffer = mmap(NULL, region->base_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fault->buffer == MAP_FAILED)
        return failed(fault, "mapping", -errno);
    memset(fault->buffer, 0, region->base_page);
    return time_pieces(fault, "reading", read_page);
}

/* -- All of it ----------------------------------------------------------------------------------------- */

static int (*const kinds[])(struct tlb_fault *, struct tlb_region *) = {
#define ENTRY(name) do_##name,
    TLB_FAULT_KINDS(ENTRY)
#undef ENTRY
};

static int prepare(struct tlb_fault *fault, struct tlb_region *region)
{
    touch_records(fault);
    if (fault->without_thp && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) < 0)
        return failed(fault, "refusing transparent huge pages", -errno);
    (void)memory_now(fault->request.base_page); /* brings in its own code, which would count */
    fault->before = memory_now(fault->request.base_page);
    int const status = map(fault, region);
    if (status < 0)
        return status;
    fault->touches.base = region->base;
    fault->mapped = memory_now(fault->request.base_page);
    if (fault->fd >= 0)
        fault->cached = cached(region);
    return 0;
}

static int work(void *context)
{
    struct tlb_fault *const fault = context;
    struct tlb_region region = {0};
    int status = prepare(fault, &region);
    if (status == 0)
        status = kinds[fault->kind](fault, &region);
    if (status < 0)
        return status;
    if (!fault->looked)
        look(fault, &region);
    uint64_t const start = tlb_clock_ns();
    status = munmap(region.reserved, region.reserved_size) < 0 ? -errno : 0;
    fault->unmap_ns = since(start);
    return failed(fault, "unmapping", status);
}

int tlb_fault(struct tlb_fault *fault, const struct tlb_poll *poll)
{
    fault->cached = fault->zero = fault->copied = UINT64_MAX;
    return tlb_in_child(work, fault, &fault->child, poll);
}
