/*
 * Regions: private anonymous memory, aligned, advised before its first touch, populated in chunks, and
 * scanned for what the page table really holds.
 */
#include "random.h"
#include "tlbprobe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Known to the kernel, not to every libc that we may be built against. */
enum {
    ADVICE_POPULATE_WRITE = 23, /* Linux 5.14 */
    ADVICE_COLLAPSE = 25,       /* Linux 6.1 */
};

enum {
    CHUNK_BYTES = 64 << 20,    /* a few milliseconds of kernel work with huge pages */
    WINDOW_PAGES = 1 << 14,    /* pages shuffled together */
    PAGES_BETWEEN_POLLS = 512, /* of up to tens of microseconds each */
    COLLAPSE_TRIES = 20,
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

static size_t chunk_of(const struct tlb_region *region)
{
    return region->page > CHUNK_BYTES ? region->page : CHUNK_BYTES;
}

/* -- Mapping --------------------------------------------------------------------------------------------- */

static int map_hugetlb(struct tlb_region *region, const struct tlb_region_request *request)
{
    int const flags =
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (int)(request->huge_shift << MAP_HUGE_SHIFT);
    region->reserved_size = request->size;
    region->reserved = mmap(NULL, region->reserved_size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (region->reserved == MAP_FAILED)
        return -errno;
    region->base = region->reserved;
    return 0;
}

/* Inaccessible margins on both sides keep the kernel from merging the region with its neighbours. */
static int map_ordinary(struct tlb_region *region, const struct tlb_region_request *request)
{
    size_t margins;
    if (__builtin_add_overflow(request->alignment, 2 * request->base_page, &margins) ||
        __builtin_add_overflow(request->size, margins, &region->reserved_size))
        return -ENOMEM;
    int const flags = MAP_PRIVATE | MAP_ANONYMOUS | (request->sparse ? MAP_NORESERVE : 0);
    region->reserved = mmap(NULL, region->reserved_size, PROT_NONE, flags, -1, 0);
    if (region->reserved == MAP_FAILED)
        return -errno;
    size_t const first = (size_t)region->reserved + request->base_page;
    region->base = (char *)round_up(first, request->alignment);
    return mprotect(region->base, request->size, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
}

/* Neighbours with different flags stay separate mappings, and no page crosses from one into the other. */
static int split(struct tlb_region *region, size_t piece)
{
    for (size_t at = piece; at < region->size; at += 2 * piece)
        if (madvise(region->base + at, smaller(piece, region->size - at), MADV_DONTDUMP) < 0)
            return -errno;
    return 0;
}

int tlb_region_map(struct tlb_region *region, const struct tlb_region_request *request)
{
    *region = (struct tlb_region){.size = request->size,
                                  .base_page = request->base_page,
                                  .page = request->page,
                                  .sparse = request->sparse};
    int status = request->huge_shift ? map_hugetlb(region, request) : map_ordinary(region, request);
    if (status == 0 && request->piece)
        status = split(region, request->piece);
    if (status < 0) {
        if (region->base)
            munmap(region->reserved, region->reserved_size);
        *region = (struct tlb_region){0};
        return status;
    }
    /* Not inherited by fork: copy-on-write would put faults into the measurement of the parent. Where this
     * is refused, the faults are still counted and said. */
    (void)madvise(region->base, region->size, MADV_DONTFORK);
    return 0;
}

int tlb_region_advise(const struct tlb_region *region, int advice)
{
    return madvise(region->base, region->size, advice) < 0 ? -errno : 0;
}

int tlb_region_unmap(struct tlb_region *region, const struct tlb_poll *poll)
{
    while (region->size > 0 && !region->sparse) {
        int const status = tlb_ask(poll);
        if (status < 0)
            return status;
        size_t const chunk = smaller(chunk_of(region), region->size);
        if (madvise(region->base + region->size - chunk, chunk, MADV_DONTNEED) < 0)
            break; /* refused: munmap does it all at once */
        region->size -= chunk;
    }
    int const status = region->base && munmap(region->reserved, region->reserved_size) < 0 ? -errno : 0;
    *region = (struct tlb_region){0};
    return status;
}

/* -- Populating ------------------------------------------------------------------------------------------ */

static void shuffle(uint32_t *order, size_t count, struct tlb_random *random)
{
    for (size_t i = 0; i < count; i++) {
        size_t const j = tlb_random_below(random, i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}

static uint64_t touch_pages(char *base, size_t page, const uint32_t *order, size_t count)
{
    uint64_t const before = tlb_clock_usage().minor;
    for (size_t i = 0; i < count; i++)
        *(volatile char *)(base + order[i] * page) = 1; /* not zero: zero pages may be reclaimed */
    return tlb_clock_usage().minor - before;
}

/* The faults are counted without those of whoever is asked in between: they tell the size of the pages. */
static int touch_window(char *base, size_t page, const uint32_t *order, size_t count, uint64_t *faults,
                        const struct tlb_poll *poll)
{
    for (size_t i = 0; i < count; i += PAGES_BETWEEN_POLLS) {
        int const status = tlb_ask(poll);
        if (status < 0)
            return status;
        *faults += touch_pages(base, page, order + i, smaller(PAGES_BETWEEN_POLLS, count - i));
    }
    return 0;
}

int tlb_region_touch(const struct tlb_region *region, bool shuffled, uint64_t seed, uint64_t *faults,
                     const struct tlb_poll *poll)
{
    size_t const page = region->base_page, pages = region->size / page;
    size_t const window = smaller(pages, WINDOW_PAGES);
    struct tlb_random random = tlb_random_seeded(seed);
    uint32_t *const order = malloc(window * sizeof(*order));
    if (!order)
        return -ENOMEM;
    for (size_t i = 0; i < window; i++)
        order[i] = (uint32_t)i;

    int status = 0;
    *faults = 0;
    for (size_t first = 0; first < pages && status == 0; first += window) {
        size_t const count = smaller(window, pages - first);
        if (shuffled)
            shuffle(order, count, &random);
        status = touch_window(region->base + first * page, page, order, count, faults, poll);
    }
    free(order);
    return status;
}

/* A read(2) into a page faults it in and fails politely, where a touch would be SIGBUS. */
static int populate_by_read(char *base, size_t size, size_t page)
{
    int const zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    int status = zeros < 0 ? -errno : 0;
    for (size_t at = 0; at < size && status == 0; at += page)
        if (read(zeros, base + at, 1) < 0)
            status = -errno;
    if (zeros >= 0)
        close(zeros);
    return status;
}

int tlb_region_populate(const struct tlb_region *region, const struct tlb_poll *poll)
{
    size_t const chunk = chunk_of(region);
    for (size_t at = 0; at < region->size; at += chunk) {
        size_t const size = smaller(chunk, region->size - at);
        int status = tlb_ask(poll);
        if (status < 0)
            return status;
        if (madvise(region->base + at, size, ADVICE_POPULATE_WRITE) < 0)
            /* Before Linux 5.14, filtered, or a true shortage: reading finds out. */
            status = populate_by_read(region->base + at, size, region->page);
        if (status < 0)
            return status;
    }
    return 0;
}

static int collapse_chunk(char *base, size_t size, const struct tlb_poll *poll)
{
    struct timespec const pause = {.tv_nsec = 5 * 1000 * 1000};
    for (int try = 0; madvise(base, size, ADVICE_COLLAPSE) < 0; try++) {
        if (errno != EAGAIN || try == COLLAPSE_TRIES)
            return -errno;
        int const status = tlb_ask(poll); /* the kernel could not isolate a page: it may soon */
        if (status < 0)
            return status;
        nanosleep(&pause, NULL);
    }
    return 0;
}

int tlb_region_collapse(const struct tlb_region *region, const struct tlb_poll *poll)
{
    size_t const chunk = chunk_of(region);
    for (size_t at = 0; at < region->size; at += chunk) {
        int status = tlb_ask(poll);
        if (status == 0)
            status = collapse_chunk(region->base + at, smaller(chunk, region->size - at), poll);
        if (status < 0)
            return status;
    }
    return 0;
}

int tlb_region_pass(const struct tlb_region *region, size_t offset, size_t size, const struct tlb_poll *poll)
{
    int status = 0;
    size_t const pages = round_up(size, region->base_page) / region->base_page;
    for (size_t i = 0; i < pages && (status = tlb_ask_at(i, PAGES_BETWEEN_POLLS, poll)) == 0; i++)
        (void)*(volatile char *)(region->base + offset + i * region->base_page);
    return status;
}

/* -- Proof: the PAGEMAP_SCAN ioctl of /proc/self/pagemap, Linux 6.7, needs no privilege. --------------- */

enum { SCAN_PRESENT = 1 << 3, SCAN_SWAPPED = 1 << 4, SCAN_ZERO = 1 << 5, SCAN_HUGE = 1 << 6 };

struct scan_range {
    uint64_t start, end, categories;
};

struct scan_request { /* the layout is the kernel's: struct pm_scan_arg */
    uint64_t size, flags, start, end, walk_end, ranges, ranges_length, max_pages;
    uint64_t inverted, all_of, any_of, returned;
};

static void scan_add(struct tlb_scan *scan, const struct scan_range *range)
{
    uint64_t const bytes = range->end - range->start;
    if (range->categories & SCAN_PRESENT)
        scan->present += bytes;
    if (range->categories & SCAN_HUGE)
        scan->huge += bytes;
    if (range->categories & SCAN_ZERO)
        scan->zero += bytes;
    if (range->categories & SCAN_SWAPPED)
        scan->swapped += bytes;
}

static int scan_all(int pagemap, struct scan_request *request, struct scan_range *ranges,
                    struct tlb_scan *scan)
{
    while (request->start < request->end) {
        int const count = ioctl(pagemap, _IOWR('f', 16, struct scan_request), request);
        if (count < 0)
            return -errno;
        for (int i = 0; i < count; i++)
            scan_add(scan, &ranges[i]);
        if (request->walk_end <= request->start)
            return -EIO; /* a kernel that does not advance would be scanned for ever */
        request->start = request->walk_end;
    }
    return 0;
}

int tlb_region_scan(const struct tlb_region *region, size_t offset, size_t size, struct tlb_scan *scan)
{
    struct scan_range ranges[256];
    uint64_t const categories = SCAN_PRESENT | SCAN_SWAPPED | SCAN_ZERO | SCAN_HUGE;
    struct scan_request request = {
        .size = sizeof(request),
        .start = (uint64_t)(uintptr_t)region->base + offset,
        .ranges = (uint64_t)(uintptr_t)ranges,
        .ranges_length = sizeof(ranges) / sizeof(*ranges),
        .any_of = SCAN_PRESENT | SCAN_SWAPPED,
        .returned = categories,
    };
    request.end = request.start + round_up(size, region->base_page);
    *scan = (struct tlb_scan){0};
    int const pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        return -errno;
    int const status = scan_all(pagemap, &request, ranges, scan);
    close(pagemap);
    return status;
}

/* Bytes of a field of smaps, where a line is of that field. */
static uint64_t smaps_field(const char *line, const char *name)
{
    size_t const length = strlen(name);
    return strncmp(line, name, length) == 0 ? strtoull(line + length, NULL, 10) << 10 : 0;
}

static void smaps_add(struct tlb_scan *scan, const char *line)
{
    uint64_t const reserved = smaps_field(line, "Private_Hugetlb:"); /* which Rss leaves out */
    scan->present += smaps_field(line, "Rss:") + reserved;
    scan->huge += smaps_field(line, "AnonHugePages:") + reserved;
    scan->swapped += smaps_field(line, "Swap:");
}

/* Whether a line begins a mapping that lies in the region: 1, 0; -1: it begins none. */
static int smaps_inside(const char *line, const struct tlb_region *region)
{
    char *rest;
    uintptr_t const first = (uintptr_t)region->base, start = strtoull(line, &rest, 16);
    if (rest == line || *rest != '-')
        return -1;
    uintptr_t const end = strtoull(rest + 1, &rest, 16);
    return first <= start && end <= first + region->size;
}

/* A text file, without stdio, which wants a heap: this runs in a forked process too. */
struct text {
    int file;
    size_t at, size; /* what is left of the bytes that were read */
    char bytes[4096];
};

/* The next character; 0 at the end. */
static char next_character(struct text *text)
{
    if (text->at == text->size) {
        ssize_t const got = read(text->file, text->bytes, sizeof(text->bytes));
        text->at = 0;
        text->size = got > 0 ? (size_t)got : 0;
    }
    return text->size ? text->bytes[text->at++] : '\0';
}

/* The next line without its end, or the beginning of a longer one; false at the end. */
static bool next_line(struct text *text, char *line, size_t size)
{
    size_t length = 0;
    char one;
    while ((one = next_character(text)) != '\0' && one != '\n')
        if (length < size - 1)
            line[length++] = one;
    line[length] = '\0';
    return one != '\0';
}

static int scan_smaps(const struct tlb_region *region, struct tlb_scan *scan)
{
    char line[128];
    int inside = 0;
    struct text text = {.file = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC)};
    *scan = (struct tlb_scan){0};
    if (text.file < 0)
        return -errno;
    while (next_line(&text, line, sizeof(line))) {
        int const begins = smaps_inside(line, region);
        if (begins >= 0)
            inside = begins;
        else if (inside)
            smaps_add(scan, line);
    }
    close(text.file);
    return 0;
}

int tlb_region_look(const struct tlb_region *region, struct tlb_scan *scan)
{
    if (tlb_region_scan(region, 0, region->size, scan) == 0)
        return 0;
    int const status = scan_smaps(region, scan);
    return status < 0 ? status : 1;
}

int tlb_region_own(const struct tlb_region *region, uint64_t *bytes)
{
    enum { ENTRIES = 512 };
    uint64_t const own = UINT64_C(1) << 63 | UINT64_C(1) << 56; /* present, and mapped by nobody else */
    uint64_t entry[ENTRIES];
    size_t const page = region->base_page, count = region->size / page;
    size_t const first = (uintptr_t)region->base / page;
    int const pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int status = pagemap < 0 ? -errno : 0;
    *bytes = 0;
    for (size_t at = 0; at < count && status == 0; at += ENTRIES) {
        size_t const some = smaller(ENTRIES, count - at), size = some * sizeof(*entry);
        if (pread(pagemap, entry, size, (off_t)((first + at) * sizeof(*entry))) != (ssize_t)size)
            status = -EIO;
        for (size_t i = 0; i < some && status == 0; i++)
            *bytes += (entry[i] & own) == own ? page : 0;
    }
    if (pagemap >= 0)
        close(pagemap);
    return status;
}
