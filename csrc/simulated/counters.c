/*
 * Groups of counters, by the model of this thread: in place of the file of the same name that has perf
 * events.
 *
 * An event is a counter of the model by its number. All are there at once and exact, so that a group always
 * runs while it is enabled; and to read them costs no time. What a kernel would keep of a group, this keeps
 * where its first page would be.
 */
#include "simulated/hooks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kept {
    bool on;
    struct tlb_reading before; /* until it was last enabled; */
    struct tlb_reading begin;  /* and what the model said then */
};

static struct kept *kept_by(const struct tlb_counters *counters)
{
    return counters->page[0];
}

/* -- Opening and closing ----------------------------------------------------------------------- */

int tlb_counters_open(struct tlb_counters *counters, const struct tlb_counters_request *request)
{
    *counters = (struct tlb_counters){.owner = getpid(), .together = true};
    if (request->count < 1 || request->count > TLB_EVENTS)
        return -EINVAL;
    for (; counters->count < request->count; counters->count++) {
        counters->id[counters->count] = request->events[counters->count].config;
        if (counters->id[counters->count] >= TLB_MODEL_COUNTERS)
            return -EINVAL;
    }
    counters->page[0] = calloc(1, sizeof(struct kept));
    return counters->page[0] ? 0 : -ENOMEM;
}

void tlb_counters_close(struct tlb_counters *counters)
{
    free(counters->page[0]);
    *counters = (struct tlb_counters){0};
}

/* -- Counting ---------------------------------------------------------------------------------- */

static int look(const struct tlb_counters *counters, struct tlb_reading *reading)
{
    uint64_t word[TLB_MODEL_COUNTERS];
    struct tlb_model_counters now;
    struct tlb_model *const model = tlb_hook_model();
    if (!model)
        return -ENODEV;
    tlb_model_count(model, &now);
    memcpy(word, &now, sizeof(now));
    reading->enabled_ns = reading->running_ns = (uint64_t)tlb_model_now(model);
    for (size_t i = 0; i < counters->count; i++)
        reading->value[i] = word[counters->id[i]];
    return 0;
}

static void add_since(struct tlb_reading *sum, const struct tlb_reading *begin, const struct tlb_reading *end)
{
    sum->enabled_ns += end->enabled_ns - begin->enabled_ns;
    sum->running_ns += end->running_ns - begin->running_ns;
    for (size_t i = 0; i < TLB_EVENTS; i++)
        sum->value[i] += end->value[i] - begin->value[i];
}

int tlb_counters_enable(const struct tlb_counters *counters)
{
    struct kept *const kept = kept_by(counters);
    int const status = kept->on ? 0 : look(counters, &kept->begin);
    kept->on = status == 0;
    return status;
}

int tlb_counters_disable(const struct tlb_counters *counters)
{
    struct kept *const kept = kept_by(counters);
    int const status = tlb_counters_read(counters, &kept->before);
    kept->on = kept->on && status < 0;
    return status;
}

int tlb_counters_reset(const struct tlb_counters *counters)
{
    struct kept *const kept = kept_by(counters);
    struct tlb_reading now = {0};
    int const status = kept->on ? look(counters, &now) : 0;
    if (status < 0)
        return status;
    memset(kept->before.value, 0, sizeof(kept->before.value));
    memcpy(kept->begin.value, now.value, sizeof(now.value));
    return 0;
}

int tlb_counters_read(const struct tlb_counters *counters, struct tlb_reading *reading)
{
    const struct kept *const kept = kept_by(counters);
    struct tlb_reading now = {0};
    int const status = kept->on ? look(counters, &now) : 0;
    if (status < 0)
        return status;
    *reading = kept->before;
    if (kept->on)
        add_since(reading, &kept->begin, &now);
    return 0;
}

int tlb_counters_peek(const struct tlb_counters *counters, struct tlb_reading *reading)
{
    return tlb_counters_read(counters, reading);
}

/* -- Names ------------------------------------------------------------------------------------- */

static const char *const whats[] = {"data", "code", "tables"};

/* Arrays of the struct, in its order: what their elements are of, and which ones there are of each. */
static const struct {
    const char *name;
    unsigned whats, places; /* 0: none of these */
} fields[] = {
    {"loads", 0, 0},
    {"stores", 0, 0},
    {"prefetches", 0, 0},
    {"jumps", 0, 0},
    {"tlb_hits", 2, TLB_MODEL_TLBS},
    {"tlb_misses", 2, TLB_MODEL_TLBS},
    {"walks", 2, 0},
    {"walk_loads", 0, 0},
    {"walk_pending", 0, 0},
    {"walk_active", 0, 0},
    {"cache_hits", 3, TLB_MODEL_CACHES + 1},
    {"cycles", 0, 0},
};

static unsigned size_of(size_t field)
{
    unsigned const whats_of = fields[field].whats, places = fields[field].places;
    return (whats_of ? whats_of : 1) * (places ? places : 1);
}

void tlb_model_counter_name(unsigned number, char name[TLB_MODEL_NAME])
{
    size_t field = 0;
    for (; number >= size_of(field); field++)
        number -= size_of(field);
    unsigned const places = fields[field].places;
    bool const has_what = fields[field].whats > 0;
    const char *const what = has_what ? whats[number / (places ? places : 1)] : "";
    char const digit[] = {places ? (char)('0' + number % places) : '\0', '\0'};
    snprintf(name, TLB_MODEL_NAME, "%s%s%s%s%s", fields[field].name, has_what ? "." : "", what,
             places ? "." : "", digit);
}
