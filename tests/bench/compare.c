/* What the kernels are compared with: the loop and the shuffle that anyone would write by hand. */
#include "random.h"

#include <time.h>

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Nanoseconds of one dependent load, over a chain that begins at node. */
double hand_written_chase(void **node, uint64_t accesses)
{
    double const start = now_ns();
    for (uint64_t i = 0; i < accesses; i++)
        node = (void **)*node;
    double const end = now_ns();
    return node ? (end - start) / (double)accesses : 0;
}

/* Seconds of a single random cycle in place: S. Sattolo, Information Processing Letters 22 (1986). */
double sattolo_in_place(char *base, uint64_t count, uint64_t spacing, uint64_t seed)
{
    double const start = now_ns();
    struct tlb_random random = tlb_random_seeded(seed);
    for (uint64_t i = 0; i < count; i++)
        *(void **)(base + i * spacing) = base + i * spacing;
    for (uint64_t i = count - 1; i > 0; i--) {
        uint64_t const j = tlb_random_below(&random, i);
        void **const here = (void **)(base + i * spacing), **const there = (void **)(base + j * spacing);
        void *const swapped = *here;
        *here = *there;
        *there = swapped;
    }
    return (now_ns() - start) * 1e-9;
}
