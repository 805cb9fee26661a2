/* What the kernels are compared with: the loop and the shuffle that anyone would write by hand. */
#include "random.h"

#include <stdbool.h>
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

static uint64_t volatile kept; /* so that no sum is left out */

/*
 * Nanoseconds of one access at a stride over so many bytes, in two ways: as anyone would write it, and
 * nested, so that nothing is compared but with the end. The stride divides the size, and the accesses are
 * whole laps.
 */
#define STRIDE_LOOPS(name, ACCESS)                                                                     \
    double hand_written_##name(unsigned char *byte, uint64_t size, uint64_t stride, uint64_t accesses) \
    {                                                                                                  \
        double const start = now_ns();                                                                 \
        uint64_t sum = 0, at = 0;                                                                      \
        for (uint64_t i = 0; i < accesses; i++) {                                                      \
            ACCESS(byte + at);                                                                         \
            at += stride;                                                                              \
            if (at >= size)                                                                            \
                at -= size;                                                                            \
        }                                                                                              \
        double const end = now_ns();                                                                   \
        kept = sum;                                                                                    \
        return (end - start) / (double)accesses;                                                       \
    }                                                                                                  \
    double nested_##name(unsigned char *byte, uint64_t size, uint64_t stride, uint64_t accesses)       \
    {                                                                                                  \
        uint64_t const laps = accesses / (size / stride);                                              \
        double const start = now_ns();                                                                 \
        uint64_t sum = 0;                                                                              \
        for (uint64_t lap = 0; lap < laps; lap++)                                                      \
            for (unsigned char volatile *at = byte; at != byte + size; at += stride)                   \
                ACCESS(at);                                                                            \
        double const end = now_ns();                                                                   \
        kept = sum;                                                                                    \
        return (end - start) / (double)accesses;                                                       \
    }

#define READ(at) sum += *(at)
#define WRITE(at) *(at) = 1
#define RMW(at) ++*(at)

STRIDE_LOOPS(read, READ)
STRIDE_LOOPS(write, WRITE)
STRIDE_LOOPS(rmw, RMW)

struct hot_line {
    struct hot_line *next;
    uint64_t session, cold, packets, bytes, unused[3];
};

/* Nanoseconds of one request, each through five objects of a random session to its statistics; the counter
 * goes on where the last call ended. */
static inline double requests(struct hot_line **directory, uint64_t sessions, uint64_t *counter,
                              uint64_t requests, bool write)
{
    uint64_t next = *counter, read = 0, found = 0;
    double const start = now_ns();
    for (uint64_t i = 0; i < requests; i++) {
        uint64_t word = next += UINT64_C(0x9e3779b97f4a7c15);
        word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
        word ^= word >> 31;
        uint64_t const session = (uint64_t)((tlb_u128)word * sessions >> 64);
        struct hot_line *object = directory[session];
        for (int hop = 0; hop < 4; hop++)
            object = object->next;
        if (write) {
            object->packets++;
            object->bytes += 64 + word % 1024;
        } else {
            read += object->packets + object->bytes;
        }
        found += object->session == session;
    }
    double const end = now_ns();
    kept = read;
    *counter = next;
    return found == requests ? (end - start) / (double)requests : 0;
}

double hand_written_reads(struct hot_line **directory, uint64_t sessions, uint64_t *counter, uint64_t count)
{
    return requests(directory, sessions, counter, count, false);
}

double hand_written_writes(struct hot_line **directory, uint64_t sessions, uint64_t *counter, uint64_t count)
{
    return requests(directory, sessions, counter, count, true);
}

/* Nanoseconds of one round of a loop that does nothing: a count, and a branch that is taken. */
double hand_written_loop(uint64_t rounds)
{
    double const start = now_ns();
    for (uint64_t left = rounds; left > 0; left--)
        __asm__ volatile("" : "+r"(left));
    return (now_ns() - start) / (double)rounds;
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

/* Nanoseconds of one look-up in a table of slots, each with a key and its complement: the queries that a
 * counter goes on with, of which the share `hit` of 2^32 asks for keys that are there. Negative if one was
 * not found. */
double hand_written_lookups(const char *base, uint64_t slots, uint64_t record_size, uint64_t records,
                            uint64_t hit, uint64_t salt, uint64_t *counter, uint64_t accesses)
{
    const char *const end_of_table = base + slots * record_size;
    uint64_t found = 0, expected = 0;
    double const start = now_ns();
    for (uint64_t i = 0; i < accesses; i++) {
        uint64_t const word = tlb_splitmix_next(counter);
        uint64_t const absent = (uint32_t)word >= hit;
        uint64_t const key = tlb_scaled(word, records) + 1 + absent * records;
        const char *record = base + tlb_scaled(tlb_mix(key ^ salt), slots) * record_size;
        expected += !absent;
        while (*(const uint64_t *)record != key && *(const uint64_t *)record != 0) {
            record += record_size;
            if (record == end_of_table)
                record = base;
        }
        found += *(const uint64_t *)record == key && ((const uint64_t *)record)[1] == ~key;
    }
    double const end = now_ns();
    return found == expected ? (end - start) / (double)accesses : -1;
}

/* Seconds of so many independent stores of 8 bytes at random slots. */
double random_stores(char *base, uint64_t slots, uint64_t record_size, uint64_t count)
{
    double const start = now_ns();
    for (uint64_t i = 1; i <= count; i++)
        *(volatile uint64_t *)(base + tlb_scaled(tlb_mix(i), slots) * record_size) = i;
    return (now_ns() - start) * 1e-9;
}
