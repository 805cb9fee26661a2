/*
 * Performance counters: groups of perf events that are counted together, or not at all.
 *
 * The kernel gives a group its counters as a whole and returns how long it had them beside how long it was
 * enabled: never running means that nothing was counted, which is not zero. A group of software events never
 * waits for counters, one of both kinds loses all where the hardware has no room, so they are kept apart.
 *
 * Sources: perf_event_open(2); Linux include/uapi/linux/perf_event.h, struct perf_event_mmap_page, for
 * reading without a system call; Linux tools/lib/perf/mmap.c for the registers of aarch64.
 */
#include "tlbprobe.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* -- Opening and closing --------------------------------------------------------------------------------- */

static struct perf_event_attr attributes_of(const struct tlb_counters_request *request, size_t i)
{
    const struct tlb_event *const event = &request->events[i];
    uint64_t const format = PERF_FORMAT_ID | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    return (struct perf_event_attr){.size = sizeof(struct perf_event_attr),
                                    .type = event->type,
                                    .config = event->config,
                                    .config1 = event->config1,
                                    .config2 = event->config2,
                                    .read_format = request->inherit ? format : format | PERF_FORMAT_GROUP,
                                    .disabled = i == 0, /* the others follow their leader */
                                    .inherit = request->inherit,
                                    .enable_on_exec = i == 0 && request->enable_on_exec,
                                    .exclude_kernel = request->exclude_kernel,
                                    .exclude_hv = request->exclude_kernel};
}

static int open_event(struct tlb_counters *counters, const struct tlb_counters_request *request, size_t i)
{
    struct perf_event_attr attributes = attributes_of(request, i);
    int const leader = i == 0 ? -1 : counters->fd[0];
    long const fd = syscall(SYS_perf_event_open, &attributes, request->pid, -1, leader, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (ioctl((int)fd, PERF_EVENT_IOC_ID, &counters->id[i]) < 0) {
        int const status = -errno;
        close((int)fd);
        return status;
    }
    counters->fd[i] = (int)fd;
    counters->count = i + 1;
    return 0;
}

/* A page that tells how to read the event without the kernel; where there is none, the kernel is asked. */
static void map_page(struct tlb_counters *counters, size_t i)
{
    void *const page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ, MAP_SHARED, counters->fd[i], 0);
    counters->page[i] = page == MAP_FAILED ? NULL : page;
}

int tlb_counters_open(struct tlb_counters *counters, const struct tlb_counters_request *request)
{
    *counters = (struct tlb_counters){.owner = getpid(),
                                      .thread = request->pid ? request->pid : (pid_t)syscall(SYS_gettid),
                                      .together = !request->inherit};
    if (request->count < 1 || request->count > TLB_EVENTS)
        return -EINVAL;
    int status = 0;
    for (size_t i = 0; i < request->count && status == 0; i++) {
        status = open_event(counters, request, i);
        if (status == 0 && request->events[i].type != PERF_TYPE_SOFTWARE) {
            counters->hardware = true;
            map_page(counters, i);
        }
    }
    return status;
}

void tlb_counters_close(struct tlb_counters *counters)
{
    bool const ours = counters->owner == getpid(); /* a forked child has the files, not the pages */
    for (size_t i = 0; i < counters->count; i++) {
        if (counters->page[i] && ours)
            munmap(counters->page[i], (size_t)sysconf(_SC_PAGESIZE));
        close(counters->fd[i]);
    }
    counters->count = 0;
}

/* -- Starting and stopping ------------------------------------------------------------------------------- */

static int control(const struct tlb_counters *counters, unsigned long request)
{
    return ioctl(counters->fd[0], request, PERF_IOC_FLAG_GROUP) < 0 ? -errno : 0;
}

int tlb_counters_enable(const struct tlb_counters *counters)
{
    return control(counters, PERF_EVENT_IOC_ENABLE);
}

int tlb_counters_disable(const struct tlb_counters *counters)
{
    return control(counters, PERF_EVENT_IOC_DISABLE);
}

int tlb_counters_reset(const struct tlb_counters *counters)
{
    return control(counters, PERF_EVENT_IOC_RESET);
}

/* -- Reading, by the kernel ------------------------------------------------------------------------------ */

static int read_all(int fd, void *buffer, size_t size)
{
    ssize_t const got = read(fd, buffer, size);
    return got < 0 ? -errno : (size_t)got == size ? 0 : -EIO;
}

/* The kernel names each value by the identity of its event: the order of the values is its own affair. */
static int read_together(const struct tlb_counters *counters, struct tlb_reading *reading)
{
    struct {
        uint64_t count, enabled, running;
        struct {
            uint64_t value, id;
        } each[TLB_EVENTS];
    } found;
    int const status =
        read_all(counters->fd[0], &found, 3 * sizeof(uint64_t) + counters->count * sizeof(*found.each));
    if (status < 0)
        return status;
    reading->enabled_ns = found.enabled;
    reading->running_ns = found.running;
    for (size_t i = 0; i < counters->count; i++)
        for (size_t k = 0; k < counters->count; k++)
            if (found.each[k].id == counters->id[i])
                reading->value[i] = found.each[k].value;
    return 0;
}

/* Inherited events: kernels before 4.13 refuse to read them as a group. They run together all the same, so
 * the times are those of the leader. */
static int read_each(const struct tlb_counters *counters, struct tlb_reading *reading)
{
    for (size_t i = 0; i < counters->count; i++) {
        struct {
            uint64_t value, enabled, running, id;
        } found;
        int const status = read_all(counters->fd[i], &found, sizeof(found));
        if (status < 0)
            return status;
        reading->value[i] = found.value;
        if (i == 0) {
            reading->enabled_ns = found.enabled;
            reading->running_ns = found.running;
        }
    }
    return 0;
}

int tlb_counters_read(const struct tlb_counters *counters, struct tlb_reading *reading)
{
    return counters->together ? read_together(counters, reading) : read_each(counters, reading);
}

/* -- Reading, without the kernel ------------------------------------------------------------------------- */

#if defined(__x86_64__)

bool tlb_counter_register(uint32_t number, uint64_t *value)
{
    uint32_t low, high;
    __asm__ volatile("rdpmc" : "=a"(low), "=d"(high) : "c"(number));
    *value = (uint64_t)high << 32 | low;
    return true;
}

#elif defined(__aarch64__)

#define ONES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define TENS(X, t) X(t##0) X(t##1) X(t##2) X(t##3) X(t##4) X(t##5) X(t##6) X(t##7) X(t##8) X(t##9)
#define READ_COUNTER(n)                                                \
    case n:                                                            \
        __asm__ volatile("mrs %0, pmevcntr" #n "_el0" : "=r"(*value)); \
        return true;

enum { CYCLE_COUNTER = 31 };

bool tlb_counter_register(uint32_t number, uint64_t *value)
{
    switch (number) {
        ONES(READ_COUNTER)
        TENS(READ_COUNTER, 1)
        TENS(READ_COUNTER, 2)
        READ_COUNTER(30)
    case CYCLE_COUNTER:
        __asm__ volatile("mrs %0, pmccntr_el0" : "=r"(*value));
        return true;
    default:
        return false;
    }
}

#else

bool tlb_counter_register(uint32_t number, uint64_t *value)
{
    (void)number, (void)value;
    return false;
}

#endif

typedef const volatile struct perf_event_mmap_page event_page;

static void barrier(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Nanoseconds since the kernel wrote the times of the page, by the tick counter. */
static uint64_t since_written(event_page *page, uint64_t ticks)
{
    if (page->cap_user_time_short)
        ticks = page->time_cycles + ((ticks - page->time_cycles) & page->time_mask);
    uint64_t const whole = ticks >> page->time_shift;
    uint64_t const rest = ticks & (((uint64_t)1 << page->time_shift) - 1);
    return page->time_offset + whole * page->time_mult + ((rest * page->time_mult) >> page->time_shift);
}

/* The counter is as wide as the page says; the kernel's offset makes 64 bits of it. */
static int64_t extended(uint64_t counted, uint16_t width)
{
    unsigned const unused = 64u - width;
    return (int64_t)(counted << unused) >> unused;
}

int tlb_counter_peek(const void *mapped, tlb_register_reader *reader, struct tlb_peek *peek)
{
    event_page *const page = mapped;
    uint32_t version;
    do {
        version = page->lock;
        barrier();
        uint32_t const index = page->index;
        uint64_t counted = 0;
        if (!page->cap_user_rdpmc || !page->cap_user_time || index == 0 || page->pmc_width < 1 ||
            page->pmc_width > 64 || !reader(index - 1, &counted))
            return -EAGAIN;
        uint64_t const since = since_written(page, tlb_ticks());
        *peek = (struct tlb_peek){.enabled_ns = page->time_enabled + since,
                                  .running_ns = page->time_running + since,
                                  .value = (uint64_t)(page->offset + extended(counted, page->pmc_width))};
        barrier();
    } while (page->lock != version);
    return 0;
}

int tlb_counters_peek(const struct tlb_counters *counters, struct tlb_reading *reading)
{
    for (size_t i = 0; i < counters->count; i++) {
        struct tlb_peek peek;
        int const status =
            counters->page[i] ? tlb_counter_peek(counters->page[i], tlb_counter_register, &peek) : -EAGAIN;
        if (status < 0)
            return status;
        reading->value[i] = peek.value;
        if (i == 0) {
            reading->enabled_ns = peek.enabled_ns;
            reading->running_ns = peek.running_ns;
        }
    }
    return 0;
}
