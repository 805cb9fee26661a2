/* What the tests drive besides the exported functions of csrc/: the inline random numbers, and a walk. */
#include "random.h"

#include <stddef.h>

void harness_stream(uint64_t seed, uint64_t *out, size_t count);
void harness_below(uint64_t seed, uint64_t bound, uint64_t *out, size_t count);
size_t harness_lap(const int64_t *successor, size_t count);

void harness_stream(uint64_t seed, uint64_t *out, size_t count)
{
    struct tlb_random random = tlb_random_seeded(seed);
    for (size_t i = 0; i < count; i++)
        out[i] = tlb_random_next(&random);
}

void harness_below(uint64_t seed, uint64_t bound, uint64_t *out, size_t count)
{
    struct tlb_random random = tlb_random_seeded(seed);
    for (size_t i = 0; i < count; i++)
        out[i] = tlb_random_below(&random, bound);
}

/* Steps from node 0 back to node 0: equal to count for a single cycle, 0 if it does not come back. */
size_t harness_lap(const int64_t *successor, size_t count)
{
    size_t steps = 0;
    int64_t node = 0;
    do
        node = successor[node];
    while (++steps < count && node != 0);
    return node == 0 ? steps : 0;
}
