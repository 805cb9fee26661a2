/*
 * Groups of counters around slices: which has its turn, what a slice counted, and what of it was not the
 * slice. By what struct tlb_counters can do, whoever counts.
 */
#include "tlbprobe.h"

#include <string.h>

/* Software groups count in every round; of the others, one after the other. */
static bool has_turn(const struct tlb_counting *counting, size_t group, uint64_t round)
{
    if (!counting->groups[group]->hardware)
        return true;
    uint64_t before = 0;
    for (size_t g = 0; g < group; g++)
        before += counting->groups[g]->hardware;
    return round % tlb_counting_turns(counting) == before;
}

uint64_t tlb_counting_turns(const struct tlb_counting *counting)
{
    uint64_t hardware = 0;
    for (size_t g = 0; g < counting->count; g++)
        hardware += counting->groups[g]->hardware;
    return hardware ? hardware : 1;
}

size_t tlb_counting_width(const struct tlb_counting *counting)
{
    size_t width = 0;
    for (size_t g = 0; g < counting->count; g++)
        width += 2 + counting->groups[g]->count;
    return width;
}

/* Starts, or stops, the groups for which that is a change. */
static int change(const struct tlb_counting *counting, uint64_t round, bool start)
{
    int status = 0;
    for (size_t g = 0; g < counting->count && status == 0; g++) {
        bool const now = has_turn(counting, g, round);
        if (now == start && (round == 0 || now != has_turn(counting, g, round - 1)))
            status =
                start ? tlb_counters_enable(counting->groups[g]) : tlb_counters_disable(counting->groups[g]);
    }
    return status;
}

/* A group that is started while another one holds its counters does not get them when those are free again,
 * before the kernel's next turn: so all others are stopped first. */
int tlb_counting_turn(const struct tlb_counting *counting, uint64_t round)
{
    int const status = change(counting, round, false);
    return status < 0 ? status : change(counting, round, true);
}

void tlb_counting_stop(const struct tlb_counting *counting)
{
    for (size_t g = 0; g < counting->count; g++)
        (void)tlb_counters_disable(counting->groups[g]);
}

/* Adds what a group has counted by now to its columns, which hold what is to be taken away from it. */
static int add_reading(const struct tlb_counters *counters, uint64_t *columns)
{
    struct tlb_reading reading;
    int status = tlb_counters_peek(counters, &reading);
    if (status < 0)
        status = tlb_counters_read(counters, &reading);
    if (status < 0)
        return status;
    columns[0] += reading.enabled_ns;
    columns[1] += reading.running_ns;
    for (size_t i = 0; i < counters->count; i++)
        columns[2 + i] += reading.value[i];
    return 0;
}

static void negate(uint64_t *columns, size_t count)
{
    for (size_t i = 0; i < count; i++)
        columns[i] = 0 - columns[i];
}

void tlb_counting_clear(const struct tlb_counting *counting, uint64_t *row)
{
    memset(row, 0, tlb_counting_width(counting) * sizeof(*row));
}

int tlb_counting_begin(const struct tlb_counting *counting, uint64_t round, uint64_t *columns)
{
    int status = 0;
    for (size_t g = 0; g < counting->count && status == 0; g++) {
        size_t const width = 2 + counting->groups[g]->count;
        if (has_turn(counting, g, round)) {
            status = add_reading(counting->groups[g], columns);
            negate(columns, width);
        }
        columns += width;
    }
    return status;
}

/* Backwards, so that the group that was read last is read first, with nothing in between. */
int tlb_counting_end(const struct tlb_counting *counting, uint64_t round, uint64_t *columns)
{
    int status = 0;
    columns += tlb_counting_width(counting);
    for (size_t g = counting->count; g-- > 0 && status == 0;) {
        columns -= 2 + counting->groups[g]->count;
        if (has_turn(counting, g, round))
            status = add_reading(counting->groups[g], columns);
    }
    return status;
}

/* A column costs the least that a slice of nothing counted in it, if its group ran: that is column 1. */
void tlb_counting_learn(const struct tlb_counting *counting, const uint64_t *row)
{
    uint64_t *cost = counting->cost;
    for (size_t g = 0; g < counting->count; g++) {
        size_t const width = 2 + counting->groups[g]->count;
        bool const ran = row[1] > 0, first = cost[1] == 0;
        for (size_t i = 0; i < width && ran; i++)
            cost[i] = first || row[i] < cost[i] ? row[i] : cost[i];
        row += width;
        cost += width;
    }
}

/* From the values, not from the times. */
void tlb_counting_discount(const struct tlb_counting *counting, uint64_t *row)
{
    const uint64_t *cost = counting->cost;
    for (size_t g = 0; g < counting->count; g++) {
        size_t const width = 2 + counting->groups[g]->count;
        for (size_t i = 2; i < width; i++)
            row[i] -= row[i] < cost[i] ? row[i] : cost[i];
        row += width;
        cost += width;
    }
}
