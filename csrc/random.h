/*
 * Random numbers: SFC64 (Chris Doty-Humphrey, PractRand), 64 bits at a time, the same on every machine.
 * Seeded as NumPy's SFC64 with its three words set to the seed, so that a test can compare the streams.
 * And SplitMix64, for streams that are kept in one word and for hashing.
 */
#ifndef TLB_RANDOM_H
#define TLB_RANDOM_H

#include <stdint.h>

struct tlb_random {
    uint64_t a, b, c, counter;
};

static inline uint64_t tlb_random_next(struct tlb_random *random)
{
    uint64_t const result = random->a + random->b + random->counter++;
    random->a = random->b ^ (random->b >> 11);
    random->b = random->c + (random->c << 3);
    random->c = ((random->c << 24) | (random->c >> 40)) + result;
    return result;
}

static inline struct tlb_random tlb_random_seeded(uint64_t seed)
{
    struct tlb_random random = {seed, seed, seed, 1};
    for (int i = 0; i < 12; i++) /* until every bit of the seed has reached every word */
        tlb_random_next(&random);
    return random;
}

/* One-to-one, and every bit of the result depends on every bit of the word: D. Stafford's variant 13 of the
 * finaliser of MurmurHash3, as SplitMix64 has it. */
static inline uint64_t tlb_mix(uint64_t word)
{
    word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 31);
}

/* SplitMix64, whose whole state is a counter: G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom
 * number generators, OOPSLA 2014. */
static inline uint64_t tlb_splitmix_next(uint64_t *counter)
{
    return tlb_mix(*counter += UINT64_C(0x9e3779b97f4a7c15));
}

__extension__ typedef unsigned __int128 tlb_u128;

/* A random word as one of 0 .. bound - 1 without a division: uniform but for one part in 2^64 / bound. */
static inline uint64_t tlb_scaled(uint64_t word, uint64_t bound)
{
    return (uint64_t)((tlb_u128)word * bound >> 64);
}

/* Uniform in 0 .. bound - 1 over the full 64 bits, without bias: D. Lemire, Fast random integer generation
 * in an interval, ACM TOMACS 29 (2019). */
static inline uint64_t tlb_random_below(struct tlb_random *random, uint64_t bound)
{
    tlb_u128 product = (tlb_u128)tlb_random_next(random) * bound;
    if ((uint64_t)product < bound) {
        uint64_t const uneven = -bound % bound; /* so many low halves would come once too often */
        while ((uint64_t)product < uneven)
            product = (tlb_u128)tlb_random_next(random) * bound;
    }
    return (uint64_t)(product >> 64);
}

#endif
