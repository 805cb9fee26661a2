/*
 * lookup: one query of a hash table with open addressing and linear probing. A record lies in the slot that
 * its key hashes to, its home, or in the next one that was free when it came; a look-up loads records from
 * home on, until it meets the key or an empty slot.
 *
 * Isolates what one random access of a program that does not wait for it costs. Look-ups do not depend on
 * each other, so the processor overlaps as many as its window of instructions holds; with a batch, as many as
 * are prefetched before the first of them is probed. Confounded by the length of the probes: with a share `a`
 * of the slots taken, (1 + 1/(1-a)) / 2 for a key that is there and (1 + 1/(1-a)^2) / 2 for one that is not
 * (D. E. Knuth, The Art of Computer Programming 3, 6.4); by branches that are predicted wrongly where they
 * end, and between hits and misses; and by prefetchers that follow a probe into the next line.
 */
#include "prefetch.h"
#include "random.h"
#include "tlbprobe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH_MOST = 64,
    RECORD_LEAST = 16,            /* bytes: a key and its value */
    KEYS_BETWEEN_POLLS = 1 << 14, /* each may miss all caches and the TLB */
    BYTES_BETWEEN_POLLS = 4 << 20,
};

static uint64_t const EMPTY = 0, ALWAYS = UINT64_C(1) << 32;

enum { COUNTER, SALT }; /* words of the state */

enum parameter { RECORDS, SLOTS, RECORD_SIZE, HIT, BATCH, SEED };

static const char *const lookup_parameters[] = {"records", "slots", "record_size", "hit",
                                                "batch",   "seed",  NULL};

/* -- The table: the first word of a record is its key, the second its value. ----------------------------- */

struct table {
    char *base, *end;
    uint64_t slots;
    uint64_t record_size; /* bytes */
    uint64_t salt;        /* makes other homes of the same keys */
};

static struct table table_of(const struct tlb_run *run)
{
    uint64_t const slots = run->parameter[SLOTS], record_size = run->parameter[RECORD_SIZE];
    return (struct table){.base = run->base,
                          .end = run->base + slots * record_size,
                          .slots = slots,
                          .record_size = record_size,
                          .salt = run->state[SALT]};
}

static inline uint64_t *words(char *record)
{
    return (uint64_t *)record;
}

static inline uint64_t value_of(uint64_t key)
{
    return ~key;
}

static inline uint64_t home_slot(const struct table *table, uint64_t key)
{
    return tlb_scaled(tlb_mix(key ^ table->salt), table->slots);
}

static inline char *home(const struct table *table, uint64_t key)
{
    return table->base + home_slot(table, key) * table->record_size;
}

/* Whether the key is there, with its own value. Where a probe goes around is a loop of its own: a condition
 * in the inner one becomes a conditional move, which each step would wait for. */
static inline bool find(const struct table *table, char *record, uint64_t key)
{
    for (;; record = table->base)
        for (; record < table->end; record += table->record_size) {
            if (words(record)[0] == key)
                return words(record)[1] == value_of(key);
            if (words(record)[0] == EMPTY)
                return false;
        }
}

static inline char *first_free(const struct table *table, char *record)
{
    for (;; record = table->base)
        for (; record < table->end; record += table->record_size)
            if (words(record)[0] == EMPTY)
                return record;
}

static inline void insert(const struct table *table, uint64_t key)
{
    char *const record = first_free(table, home(table, key));
    words(record)[0] = key;
    words(record)[1] = value_of(key);
}

/*
 * -- Building. Homes are random, so keys inserted in order would miss caches and TLB each time. Instead:
 *
 *   1. count   the keys with a home in each range of slots
 *   2. list    them, range by range, ascending
 *   3. insert  one list after the other, into slots that fit a cache
 *
 * The lists lie at the end of the table. Of the smallest records, those that are still to be read take half
 * of the ranges that are still to be filled, so there is room for what is inserted, until only the last
 * ranges are left. These have no list: their keys are found again and inserted last, as all keys of a small
 * table are.
 */

/* A test shrinks the ranges, to have many of few slots. */
#ifndef TLB_RANGE_SLOTS
#define TLB_RANGE_SLOTS (1 << 16)
#endif

enum {
    RANGES_MOST = 1024,  /* lists that are written at once: more outrun caches and TLB */
    RANGES_UNLISTED = 8, /* one and a half would do, if no record flowed over into the next range */
    KEYS_AT_ONCE = 64,   /* that are prefetched together */
};

struct build {
    struct table table;
    uint64_t records;
    unsigned shift;  /* slot >> shift is its range */
    uint64_t listed; /* the first so many ranges have lists */
    uint64_t *start; /* [listed + 3]: where each list begins in keys */
    uint64_t *keys;  /* all lists: the end of the table */
    char *cleared;   /* before it lie records and empty slots */
};

static void size_ranges(struct build *build)
{
    uint64_t ranges;
    build->shift = (unsigned)__builtin_ctzll(TLB_RANGE_SLOTS);
    while ((ranges = ((build->table.slots - 1) >> build->shift) + 1) > RANGES_MOST)
        build->shift++;
    build->listed = ranges > RANGES_UNLISTED ? ranges - RANGES_UNLISTED : 0;
}

static inline uint64_t range_of(const struct build *build, uint64_t key)
{
    uint64_t const range = home_slot(&build->table, key) >> build->shift;
    return range < build->listed ? range : build->listed;
}

/* Counts two places on: start[range + 1] is where a list begins, and where it ends once it is full. */
static int count_keys(struct build *build, const struct tlb_poll *poll)
{
    int status = 0;
    for (uint64_t key = 1; key <= build->records && status == 0; key++) {
        build->start[range_of(build, key) + 2]++;
        status = tlb_ask_at(key, KEYS_BETWEEN_POLLS, poll);
    }
    for (uint64_t range = 0; range < build->listed; range++)
        build->start[range + 2] += build->start[range + 1];
    build->keys = (uint64_t *)build->table.end - build->start[build->listed + 1];
    return status;
}

static int list_keys(struct build *build, const struct tlb_poll *poll)
{
    int status = 0;
    for (uint64_t key = 1; key <= build->records && status == 0; key++) {
        uint64_t const range = range_of(build, key);
        if (range < build->listed)
            build->keys[build->start[range + 1]++] = key;
        status = tlb_ask_at(key, KEYS_BETWEEN_POLLS, poll);
    }
    return status;
}

static int clear_to(struct build *build, const char *place, const struct tlb_poll *poll)
{
    int status = 0;
    while (build->cleared < place && status == 0) {
        size_t const left = (size_t)(place - build->cleared);
        size_t const bytes = left < BYTES_BETWEEN_POLLS ? left : BYTES_BETWEEN_POLLS;
        memset(build->cleared, 0, bytes);
        build->cleared += bytes;
        status = tlb_ask(poll);
    }
    return status;
}

static inline void insert_at_once(const struct table *table, const uint64_t *keys, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        __builtin_prefetch(home(table, keys[i]), 1);
    for (uint64_t i = 0; i < count; i++)
        insert(table, keys[i]);
}

static int insert_list(const struct build *build, uint64_t range, const struct tlb_poll *poll)
{
    uint64_t const *const list = build->keys + build->start[range];
    uint64_t const count = build->start[range + 1] - build->start[range];
    int status = 0;
    for (uint64_t i = 0; i < count && status == 0; i += KEYS_AT_ONCE) {
        insert_at_once(&build->table, list + i, count - i < KEYS_AT_ONCE ? count - i : KEYS_AT_ONCE);
        status = tlb_ask_at(i, KEYS_BETWEEN_POLLS, poll);
    }
    return status;
}

static int insert_unlisted(const struct build *build, const struct tlb_poll *poll)
{
    uint64_t keys[KEYS_AT_ONCE], count = 0;
    int status = 0;
    for (uint64_t key = 1; key <= build->records && status == 0; key++) {
        keys[count] = key;
        count += range_of(build, key) == build->listed;
        if (count == KEYS_AT_ONCE) {
            insert_at_once(&build->table, keys, count);
            count = 0;
        }
        status = tlb_ask_at(key, KEYS_BETWEEN_POLLS, poll);
    }
    insert_at_once(&build->table, keys, count);
    return status;
}

static int fill(struct build *build, const struct tlb_poll *poll)
{
    int status = 0;
    if (build->listed > 0 &&
        ((status = count_keys(build, poll)) < 0 || (status = list_keys(build, poll)) < 0))
        return status;
    for (uint64_t range = 0; range < build->listed; range++)
        if ((status = clear_to(build, (char *)(build->keys + build->start[range]), poll)) < 0 ||
            (status = insert_list(build, range, poll)) < 0)
            return status;
    status = clear_to(build, build->table.end, poll);
    return status < 0 ? status : insert_unlisted(build, poll);
}

/* Keys go up to twice the records, which fits: each record takes bytes. */
static bool fits(const struct tlb_run *run)
{
    uint64_t const *const p = run->parameter;
    uint64_t bytes;
    return p[RECORDS] > 0 && p[SLOTS] > p[RECORDS] && p[RECORD_SIZE] >= RECORD_LEAST &&
           p[RECORD_SIZE] % 8 == 0 && !__builtin_mul_overflow(p[SLOTS], p[RECORD_SIZE], &bytes) &&
           bytes <= run->size && p[HIT] <= ALWAYS && p[BATCH] > 0 && p[BATCH] <= BATCH_MOST;
}

static int lookup_prepare(struct tlb_run *run, const struct tlb_poll *poll)
{
    if (!fits(run))
        return -EINVAL;
    run->lap = run->parameter[RECORDS];
    run->state[COUNTER] = run->parameter[SEED];
    run->state[SALT] = tlb_splitmix_next(&run->state[COUNTER]); /* the queries are what comes after it */
    struct build build = {.table = table_of(run), .records = run->parameter[RECORDS], .cleared = run->base};
    size_ranges(&build);
    build.start = calloc(build.listed + 3, sizeof(*build.start));
    if (!build.start)
        return -ENOMEM;
    int const status = fill(&build, poll);
    free(build.start);
    return status;
}

/* -- Queries: keys that are there, and others that are not. ---------------------------------------------- */

struct queries {
    uint64_t counter;
    uint64_t records;
    uint64_t hit;      /* share of keys that are there, in 2^-32 */
    uint64_t expected; /* how many of them there were */
};

/* A conditional move: a branch would be predicted wrongly. */
static inline uint64_t next_key(struct queries *queries)
{
    uint64_t const word = tlb_splitmix_next(&queries->counter);
    uint64_t const absent = (uint32_t)word >= queries->hit;
    queries->expected += !absent;
    return tlb_scaled(word, queries->records) + 1 + (absent ? queries->records : 0);
}

static struct queries queries_begin(const struct tlb_run *run)
{
    return (struct queries){.counter = run->state[COUNTER],
                            .records = run->parameter[RECORDS],
                            .hit = run->parameter[HIT],
                            .expected = run->expected};
}

static void queries_end(struct tlb_run *run, const struct queries *queries, uint64_t found)
{
    run->state[COUNTER] = queries->counter;
    run->expected = queries->expected;
    run->found += found;
}

/* The timed loops; not inlined, so that a test can read them by name. */

__attribute__((noinline)) static void one_by_one(struct tlb_run *run, uint64_t accesses)
{
    struct table const table = table_of(run);
    struct queries queries = queries_begin(run);
    uint64_t found = 0;
    for (uint64_t i = 0; i < accesses; i++) {
        uint64_t const key = next_key(&queries);
        found += find(&table, home(&table, key), key);
    }
    queries_end(run, &queries, found);
}

__attribute__((noinline)) static void in_batches(struct tlb_run *run, uint64_t accesses)
{
    struct table const table = table_of(run);
    struct queries queries = queries_begin(run);
    uint64_t const batch = run->parameter[BATCH];
    uint64_t found = 0, keys[BATCH_MOST];
    char *homes[BATCH_MOST];
    for (uint64_t count, left = accesses; left > 0; left -= count) {
        count = left < batch ? left : batch;
        for (uint64_t i = 0; i < count; i++) {
            keys[i] = next_key(&queries);
            homes[i] = home(&table, keys[i]);
            tlb_prefetch(homes[i]);
        }
        for (uint64_t i = 0; i < count; i++)
            found += find(&table, homes[i], keys[i]);
    }
    queries_end(run, &queries, found);
}

static void lookup_access(struct tlb_run *run, uint64_t accesses)
{
    if (run->parameter[BATCH] == 1)
        one_by_one(run, accesses);
    else
        in_batches(run, accesses);
}

/* -- Verifying ------------------------------------------------------------------------------------------- */

static inline uint64_t around(const struct table *table, uint64_t slot)
{
    return slot < table->slots ? slot : slot - table->slots;
}

/* `slots` if none is empty. */
static int first_empty(const struct table *table, uint64_t *slot, const struct tlb_poll *poll)
{
    int status = 0;
    for (*slot = 0; *slot < table->slots && status == 0; ++*slot) {
        if (words(table->base + *slot * table->record_size)[0] == EMPTY)
            return 0;
        status = tlb_ask_at(*slot, KEYS_BETWEEN_POLLS, poll);
    }
    return status;
}

/*
 * Counts the records that a look-up would find: a key of those inserted, its value, and no empty slot from
 * its home to where it lies. Once around, from one empty slot back to it; where there is none, a look-up may
 * never end, and nothing counts.
 */
static int lookup_verify(struct tlb_run *run, uint64_t *found, const struct tlb_poll *poll)
{
    struct table const table = table_of(run);
    uint64_t start, empty = 0; /* the last empty slot, so many after the first one */
    int status = first_empty(&table, &start, poll);
    *found = 0;
    for (uint64_t i = 1; start < table.slots && i < table.slots && status == 0; i++) {
        uint64_t const slot = around(&table, start + i);
        uint64_t const *const record = words(table.base + slot * table.record_size);
        if (record[0] == EMPTY)
            empty = i;
        else if (record[0] <= run->parameter[RECORDS] && record[1] == value_of(record[0]))
            *found += around(&table, slot + table.slots - home_slot(&table, record[0])) < i - empty;
        status = tlb_ask_at(i, KEYS_BETWEEN_POLLS, poll);
    }
    return status;
}

const struct tlb_kernel tlb_kernel_lookup = {
    .name = "lookup",
    .parameters = lookup_parameters,
    .prepare = lookup_prepare,
    .access = lookup_access,
    .verify = lookup_verify,
    .together = BATCH,
};
