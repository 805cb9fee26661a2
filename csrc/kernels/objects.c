/*
 * objects: a request through a chain of objects, as a packet takes it through a user plane. A directory has a
 * pointer for every session; from there each object points to the next: session, packet detection rule (PDR),
 * forwarding action rule (FAR), quality-of-service rule (QER), statistics. The loads of one request depend on
 * each other, requests do not. A request touches one line of each object, its hot fields, and never the cold
 * ones.
 *
 * Isolates what the layout of the same objects costs: every layout has as many bytes, and as many hot lines a
 * request, on more or fewer pages. Confounded by what the caches hold of these lines, by requests that
 * overlap, and by prefetching of adjacent lines, which hot fields side by side gain from. Objects are an odd
 * number of lines, so that hot lines fill any power-of-two number of cache sets evenly.
 */
#include "random.h"
#include "tlbprobe.h"

#include <errno.h>
#include <stdlib.h>

enum parameter { SESSIONS, LAYOUT, WRITE, SEED };
enum layout { SCATTERED, POOLED, SPLIT, LAYOUTS };
enum kind { SESSION, PDR, FAR, QER, STATISTICS, KINDS };
enum state { COUNTER, READ };

enum {
    LINE = 64,
    TOGETHER = STATISTICS * LINE,  /* hot lines that `split` keeps side by side, on one page */
    STEPS_BETWEEN_POLLS = 1 << 12, /* each may miss all caches and the TLB, of `verify` five times */
    LENGTH_LEAST = 64,             /* bytes of a packet */
    LENGTHS = 1024,
};

static const uint64_t lines_of[KINDS] = {23, 15, 9, 7, 9};
static const uint64_t lines_before[KINDS] = {0, 23, 23 + 15, 23 + 15 + 9, 23 + 15 + 9 + 7};
enum { LINES = 23 + 15 + 9 + 7 + 9 }; /* of a session */

static const char *const objects_parameters[] = {"sessions", "layout", "write", "seed", NULL};

/* The hot line of an object. */
struct hot {
    struct hot *next; /* NULL: the last */
    uint64_t session;
    char *cold;
    uint64_t packets, bytes; /* counted in statistics objects */
    uint64_t unused[3];
};
_Static_assert(sizeof(struct hot) == LINE, "hot fields are one line");

/* -- Where objects are ---------------------------------------------------------------------------------- */

/* A pointer a session, rounded up so that the hot lines of `split` do not straddle pages. */
static uint64_t directory_bytes(uint64_t sessions)
{
    return (sessions * sizeof(struct hot *) + TOGETHER - 1) / TOGETHER * TOGETHER;
}

/* False if they are more than 64 bits count. */
static bool objects_bytes(uint64_t sessions, uint64_t *bytes)
{
    if (__builtin_mul_overflow(sessions, LINES * LINE, bytes))
        return false;
    return !__builtin_add_overflow(*bytes, directory_bytes(sessions), bytes);
}

static struct hot **directory_of(const struct tlb_run *run)
{
    return (struct hot **)(void *)run->base;
}

struct objects {
    struct hot **directory;
    char *first; /* where the objects begin */
    uint64_t sessions, layout;
    const uint64_t *places; /* `scattered`: of object k, in lines */
};

static struct hot *hot_of(const struct objects *objects, uint64_t session, uint64_t kind)
{
    uint64_t line;
    if (objects->layout == SCATTERED)
        line = objects->places[session * KINDS + kind];
    else if (objects->layout == POOLED)
        line = objects->sessions * lines_before[kind] + session * lines_of[kind];
    else if (kind == STATISTICS)
        line = objects->sessions * STATISTICS + session;
    else
        line = session * STATISTICS + kind;
    return (struct hot *)(void *)(objects->first + line * LINE);
}

static char *cold_of(const struct objects *objects, uint64_t session, uint64_t kind)
{
    if (objects->layout != SPLIT)
        return (char *)(hot_of(objects, session, kind) + 1);
    uint64_t const pool = objects->sessions * (KINDS + lines_before[kind] - kind);
    return objects->first + (pool + session * (lines_of[kind] - 1)) * LINE;
}

/* -- Preparing ------------------------------------------------------------------------------------------ */

/* R. Durstenfeld, Random permutation, Communications of the ACM 7 (1964), from the inside out. */
static int shuffle(uint64_t *order, uint64_t count, uint64_t seed, const struct tlb_poll *poll)
{
    int status = 0;
    struct tlb_random random = tlb_random_seeded(seed);
    for (uint64_t i = 0; i < count && status == 0; i++) {
        uint64_t const other = tlb_random_below(&random, i + 1);
        order[i] = order[other];
        order[other] = i;
        status = tlb_ask_at(i, STEPS_BETWEEN_POLLS, poll);
    }
    return status;
}

/* One behind the other in a given order. */
static int place(uint64_t *places, const uint64_t *order, uint64_t count, const struct tlb_poll *poll)
{
    int status = 0;
    uint64_t line = 0;
    for (uint64_t i = 0; i < count && status == 0; i++) {
        places[order[i]] = line;
        line += lines_of[order[i] % KINDS];
        status = tlb_ask_at(i, STEPS_BETWEEN_POLLS, poll);
    }
    return status;
}

/* In the order given, or that of sessions and kinds. */
static int write_hot_lines(const struct objects *objects, const uint64_t *order, const struct tlb_poll *poll)
{
    int status = 0;
    for (uint64_t i = 0; i < objects->sessions * KINDS && status == 0; i++) {
        uint64_t const object = order ? order[i] : i, session = object / KINDS, kind = object % KINDS;
        struct hot *const hot = hot_of(objects, session, kind);
        *hot = (struct hot){.next = kind == STATISTICS ? NULL : hot_of(objects, session, kind + 1),
                            .session = session,
                            .cold = cold_of(objects, session, kind)};
        if (kind == SESSION)
            objects->directory[session] = hot;
        status = tlb_ask_at(i, STEPS_BETWEEN_POLLS, poll);
    }
    return status;
}

/* The order lies at the end of the bytes. Hot lines are written in address order, and those still to come
 * have more room than their numbers, so each number is read before a line overwrites it. */
static int write_scattered(struct objects *objects, char *end, uint64_t seed, const struct tlb_poll *poll)
{
    uint64_t const count = objects->sessions * KINDS;
    uint64_t *const order = (uint64_t *)(void *)end - count;
    uint64_t *const places = malloc(count * sizeof(*places));
    if (!places)
        return -ENOMEM;
    objects->places = places;
    int status = shuffle(order, count, seed, poll);
    if (status == 0)
        status = place(places, order, count, poll);
    if (status == 0)
        status = write_hot_lines(objects, order, poll);
    free(places);
    return status;
}

static int objects_prepare(struct tlb_run *run, const struct tlb_poll *poll)
{
    uint64_t const sessions = run->parameter[SESSIONS];
    uint64_t bytes;
    if (sessions == 0 || !objects_bytes(sessions, &bytes) || bytes > run->size ||
        (uintptr_t)run->base % TOGETHER || run->parameter[LAYOUT] >= LAYOUTS || run->parameter[WRITE] > 1)
        return -EINVAL;
    run->lap = sessions;
    run->state[COUNTER] = run->parameter[SEED];
    struct objects objects = {.directory = directory_of(run),
                              .first = run->base + directory_bytes(sessions),
                              .sessions = sessions,
                              .layout = run->parameter[LAYOUT]};
    if (objects.layout == SCATTERED)
        return write_scattered(&objects, run->base + bytes, run->parameter[SEED], poll);
    return write_hot_lines(&objects, NULL, poll);
}

/* -- The timed loops ------------------------------------------------------------------------------------ */

/* The session asked for lies in the upper bits of the word, the length of the packet in the lowest. */
__attribute__((always_inline)) static inline void serve(struct tlb_run *run, uint64_t requests, bool write)
{
    struct hot *const *const directory = directory_of(run);
    uint64_t const sessions = run->parameter[SESSIONS];
    uint64_t counter = run->state[COUNTER], read = 0, found = 0;
    for (uint64_t i = 0; i < requests; i++) {
        uint64_t const word = tlb_splitmix_next(&counter);
        uint64_t const session = tlb_scaled(word, sessions);
        struct hot *const statistics = directory[session]->next->next->next->next;
        if (write) {
            statistics->packets += 1;
            statistics->bytes += LENGTH_LEAST + word % LENGTHS;
        } else {
            read += statistics->packets + statistics->bytes;
        }
        found += statistics->session == session;
    }
    run->state[COUNTER] = counter;
    run->state[READ] += read;
    run->expected += requests;
    run->found += found;
}

static void objects_access(struct tlb_run *run, uint64_t accesses)
{
    if (run->parameter[WRITE])
        serve(run, accesses, true);
    else
        serve(run, accesses, false);
}

/* -- Untimed -------------------------------------------------------------------------------------------- */

/* Whether five objects of a session lie behind its directory entry, and no more. */
static bool is_whole(const struct tlb_run *run, uint64_t session)
{
    const struct hot *hot = directory_of(run)[session];
    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t const offset = (uint64_t)((uintptr_t)hot - (uintptr_t)run->base);
        if (offset > run->size - LINE || offset % LINE || hot->session != session)
            return false;
        hot = hot->next;
    }
    return hot == NULL;
}

static int objects_verify(struct tlb_run *run, uint64_t *found, const struct tlb_poll *poll)
{
    int status = 0;
    *found = 0;
    for (uint64_t session = 0; session < run->parameter[SESSIONS] && status == 0; session++) {
        *found += is_whole(run, session);
        status = tlb_ask_at(session, STEPS_BETWEEN_POLLS, poll);
    }
    return status;
}

const struct tlb_kernel tlb_kernel_objects = {
    .name = "objects",
    .parameters = objects_parameters,
    .prepare = objects_prepare,
    .access = objects_access,
    .verify = objects_verify,
};
