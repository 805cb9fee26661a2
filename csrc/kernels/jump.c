/*
 * jump: a direct jump. Each cell of code counts one access and jumps to the next cell of a random cycle, the
 * same cycle as that of a chase with the same seed.
 *
 * Isolates, spread against packed, what instruction fetch waits for translation: one cell a page uses as many
 * pages as there are cells. Confounded by the branch target buffer, which holds as many jumps either way but
 * may find those of spread cells in fewer of its sets; by instruction caches and decoders. Where jumps are
 * predicted, fetch runs ahead of execution and hides a part of each miss.
 *
 * The memory is written first and made executable then, never both at once; release makes it writable again.
 */
#include "code.h"
#include "tlbprobe.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef TLB_SIMULATED
#include "simulated/hooks.h"
#endif

enum { CELLS_BETWEEN_POLLS = 1 << 14 };

enum parameter { NODES, SPACING, PAGES, LINES, LINE, SEED };

enum state { NEXT /* address of the cell that runs next */, PROTECTED /* its memory may not be writable */ };

static const char *const jump_parameters[] = {"nodes", "spacing", "pages", "lines", "line", "seed", NULL};

static struct tlb_nodes jump_cells(const struct tlb_run *run)
{
    return (struct tlb_nodes){.base = run->base,
                              .count = run->parameter[NODES],
                              .spacing = run->parameter[SPACING],
                              .pages = run->parameter[PAGES],
                              .lines = run->parameter[LINES],
                              .line = run->parameter[LINE]};
}

static uint64_t address_of(const void *cell)
{
    return (uintptr_t)cell;
}

/* -- Before ------------------------------------------------------------------------------------------- */

/* Whole pages, to be protected; whole cells, each on one line: a span ends with a node, 8 bytes of a cell. */
static int check(const struct tlb_run *run, const struct tlb_nodes *cells, const struct tlb_code *code)
{
    uint64_t const page = (uint64_t)sysconf(_SC_PAGESIZE), span = tlb_nodes_span(cells);
    if (!code)
        return -ENOSYS;
    if (address_of(run->base) % page || run->size % page || span > run->size ||
        run->size - span < TLB_CODE_CELL - 8 || cells->line < TLB_CODE_CELL || cells->line % TLB_CODE_CELL ||
        cells->spacing % cells->line)
        return -EINVAL;
    return span + TLB_CODE_CELL - 8 > code->reach ? -ERANGE : 0;
}

/* The cycle of a chase, linked in a row of words: word i holds the address of the word of the next cell. */
static char **link_row(uint64_t count, uint64_t seed, const struct tlb_poll *poll, int *status)
{
    char **const row = malloc(count * sizeof(*row));
    struct tlb_nodes const words = {
        .base = (char *)row, .count = count, .spacing = sizeof(*row), .pages = 1, .lines = 1, .line = 8};
    *status = row ? tlb_cycle_link(&words, seed, poll) : -ENOMEM;
    return row;
}

static int write_cells(const struct tlb_nodes *cells, const struct tlb_code *code, char *const *row,
                       const struct tlb_poll *poll)
{
    int status = 0;
    for (uint64_t i = 0; i < cells->count && status == 0; i++) {
        uint64_t const next = (uint64_t)(row[i] - (const char *)row) / sizeof(*row);
        char *const cell = tlb_node(cells, i);
        status = code->write((unsigned char *)cell, address_of(cell), address_of(tlb_node(cells, next)));
        __builtin___clear_cache(cell, cell + TLB_CODE_CELL);
        if (status == 0)
            status = tlb_ask_at(i, CELLS_BETWEEN_POLLS, poll);
    }
    return status;
}

static int jump_prepare(struct tlb_run *run, const struct tlb_poll *poll)
{
    struct tlb_nodes const cells = jump_cells(run);
    const struct tlb_code *const code = tlb_code_here();
    int status = check(run, &cells, code);
    if (status < 0)
        return status;
    char **const row = link_row(cells.count, run->parameter[SEED], poll, &status);
    if (status == 0)
        status = write_cells(&cells, code, row, poll);
    free(row);
    if (status < 0)
        return status;
    run->lap = cells.count;
    run->state[NEXT] = address_of(tlb_node(&cells, 0));
    run->state[PROTECTED] = true;
    return mprotect(run->base, run->size, PROT_READ | PROT_EXEC) < 0 ? -errno : 0;
}

/* -- The timed part: the cells themselves ------------------------------------------------------------- */

#ifdef TLB_SIMULATED
/* Machine code cannot be instrumented: the way that it takes is followed, cell by cell. */
static uint64_t run_cells(uint64_t first, uint64_t accesses)
{
    const struct tlb_code *const code = tlb_code_here();
    uint64_t cell = first;
    for (; accesses > 0 && cell; accesses--) {
        tlb_hook_jump(cell);
        cell = tlb_code_next(code, (const unsigned char *)(uintptr_t)cell, cell);
    }
    return cell;
}
#else
typedef void *cell_code(uint64_t accesses);

static uint64_t run_cells(uint64_t first, uint64_t accesses)
{
    return accesses ? address_of(((cell_code *)(uintptr_t)first)(accesses)) : first;
}
#endif

static void jump_access(struct tlb_run *run, uint64_t accesses)
{
    run->state[NEXT] = run_cells(run->state[NEXT], accesses);
}

/* -- Untimed ------------------------------------------------------------------------------------------ */

/* Cells from the first one until a jump leads back to it; 0 if one is damaged, or leads anywhere else. */
static int walk(const struct tlb_run *run, uint64_t *steps, const struct tlb_poll *poll)
{
    struct tlb_nodes const cells = jump_cells(run);
    uint64_t const first = address_of(tlb_node(&cells, 0));
    uint64_t cell = first, walked = 0;
    *steps = 0;
    do {
        uint64_t const offset = cell - address_of(run->base);
        int const status = tlb_ask_at(walked, CELLS_BETWEEN_POLLS, poll);
        if (status < 0)
            return status;
        if (offset > run->size - TLB_CODE_CELL || offset % cells.line)
            return 0;
        cell = tlb_code_next(tlb_code_here(), (const unsigned char *)run->base + offset, cell);
    } while (++walked < cells.count && cell != first);
    if (cell == first)
        *steps = walked;
    return 0;
}

/* A damaged cell is found by the walk, and never executed; then a lap has to end where it began. */
static int jump_verify(struct tlb_run *run, uint64_t *found, const struct tlb_poll *poll)
{
    struct tlb_nodes const cells = jump_cells(run);
    uint64_t const first = address_of(tlb_node(&cells, 0));
    int status = walk(run, found, poll);
    if (status < 0 || *found != run->lap)
        return status;
    uint64_t cell = first, left = run->lap;
    while (left > 0 && (status = tlb_ask(poll)) == 0) {
        uint64_t const now = left < CELLS_BETWEEN_POLLS ? left : CELLS_BETWEEN_POLLS;
        cell = run_cells(cell, now);
        left -= now;
    }
    if (cell != first)
        *found = 0;
    return status;
}

static void jump_release(struct tlb_run *run)
{
    if (run->state[PROTECTED])
        (void)mprotect(run->base, run->size, PROT_READ | PROT_WRITE);
}

const struct tlb_kernel tlb_kernel_jump = {
    .name = "jump",
    .parameters = jump_parameters,
    .prepare = jump_prepare,
    .access = jump_access,
    .verify = jump_verify,
    .release = jump_release,
};
