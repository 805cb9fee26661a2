/*
 * stride: independent accesses of a byte each, the k-th at byte k * stride modulo the working set.
 *
 * Isolates the throughput of accesses that do not wait for each other: a line apart that of the caches and of
 * memory, a page apart that of page walks, as far as the hardware overlaps them. Confounded by prefetchers,
 * which see through a constant stride, and by how many accesses are in flight at once: the time of one is no
 * latency.
 *
 * The way from the start of the working set to its end is a crossing. It has size / stride accesses, and one
 * more where it begins in the first size % stride bytes; so nothing is divided or compared for each access.
 * Source: R. H. Saavedra and A. J. Smith, Measuring cache and TLB performance, IEEE Transactions on Computers
 * 44 (1995); articles that walk memory a byte a page, or a line against a page and a line at a time.
 */
#include "tlbprobe.h"

#include <errno.h>

enum { WRITTEN = 0xA5 }; /* not zero, which some processors store at less cost */

enum parameter { STRIDE, ACCESS };
enum access { READ, WRITE, RMW };
/* Byte of the next access; accesses left of its crossing, at least 1; size / stride, and its remainder. */
enum state { AT, LEFT, WHOLE, REST, SUM };

static const char *const stride_parameters[] = {"stride", "access", NULL};

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t const rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int stride_prepare(struct tlb_run *run, const struct tlb_poll *poll)
{
    (void)poll;
    uint64_t const stride = run->parameter[STRIDE];
    if (stride == 0 || stride > run->size || run->parameter[ACCESS] > RMW)
        return -EINVAL;
    run->lap = run->size / greatest_common_divisor(run->size, stride);
    run->state[AT] = run->state[SUM] = 0;
    run->state[WHOLE] = run->size / stride;
    run->state[REST] = run->size % stride;
    run->state[LEFT] = run->state[WHOLE] + (run->state[REST] > 0);
    return 0;
}

/* -- The timed loops, one for each kind of access: from address `at` on, up to but without `end`. ------ */

typedef uint64_t part(uintptr_t at, uintptr_t end, uint64_t stride);

static inline uint64_t read_part(uintptr_t at, uintptr_t end, uint64_t stride)
{
    uint64_t sum = 0;
    for (; at != end; at += stride)
        sum += *(unsigned char volatile *)at;
    return sum;
}

static inline uint64_t write_part(uintptr_t at, uintptr_t end, uint64_t stride)
{
    for (; at != end; at += stride)
        *(unsigned char volatile *)at = WRITTEN;
    return 0;
}

static inline uint64_t rmw_part(uintptr_t at, uintptr_t end, uint64_t stride)
{
    for (; at != end; at += stride)
        ++*(unsigned char volatile *)at;
    return 0;
}

/* Goes on where the last slice ended: whole crossings, then a part of one. The accesses are inlined. */
static inline void cross(struct tlb_run *run, uint64_t accesses, part *access)
{
    uint64_t const stride = run->parameter[STRIDE], whole = run->state[WHOLE], rest = run->state[REST];
    uintptr_t const begin = (uintptr_t)run->base, beyond = begin + run->size;
    uintptr_t at = begin + run->state[AT];
    uint64_t left = run->state[LEFT], sum = run->state[SUM];
    while (accesses >= left) {
        uintptr_t const end = at + left * stride;
        sum += access(at, end, stride);
        accesses -= left;
        at = begin + (end - beyond);
        left = whole + (end - beyond < rest);
    }
    uintptr_t const end = at + accesses * stride;
    run->state[SUM] = sum + access(at, end, stride);
    run->state[AT] = end - begin;
    run->state[LEFT] = left - accesses;
}

static void read_bytes(struct tlb_run *run, uint64_t accesses)
{
    cross(run, accesses, read_part);
}

static void write_bytes(struct tlb_run *run, uint64_t accesses)
{
    cross(run, accesses, write_part);
}

static void rmw_bytes(struct tlb_run *run, uint64_t accesses)
{
    cross(run, accesses, rmw_part);
}

typedef void loop(struct tlb_run *run, uint64_t accesses);

static loop *const loops[] = {[READ] = read_bytes, [WRITE] = write_bytes, [RMW] = rmw_bytes};

static void stride_access(struct tlb_run *run, uint64_t accesses)
{
    loops[run->parameter[ACCESS]](run, accesses);
}

const struct tlb_kernel tlb_kernel_stride = {
    .name = "stride",
    .parameters = stride_parameters,
    .prepare = stride_prepare,
    .access = stride_access,
};
