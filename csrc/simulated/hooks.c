/*
 * What instrumented code calls: the functions that -fsanitize=thread puts before every load and store, here
 * without the library that they are usually from. They tell the model of this thread, and nobody else.
 *
 * The code that runs on the model is the kernel as it is, so what it is measured by is what it really does. A
 * load is told of just before it is done, so the hook reads what will be loaded. Only the bytes of the run
 * count: a kernel's state and stack are ignored, and so is all that happens outside of tlb_run_access. An
 * access of more than a word, or one that crosses a line, is one access a line: hardware does it so.
 *
 * This file is not instrumented. The hooks are hidden: a program may have a real thread sanitizer, and a
 * process another copy of this.
 */
#include "simulated/hooks.h"

#include <errno.h>
#include <string.h>

static _Thread_local struct tlb_model *current;

struct tlb_model *tlb_hook_use(struct tlb_model *model)
{
    struct tlb_model *const last = current;
    current = model;
    return last;
}

struct tlb_model *tlb_hook_model(void)
{
    return current;
}

/* Of no bytes nothing can be accessed. */
static int run_piece(struct tlb_model *model, struct tlb_run *run, uint64_t accesses)
{
    int const status = run->size ? tlb_model_enter(model, (uintptr_t)run->base, run->size) : 0;
    if (status < 0)
        return status;
    run->kernel->access(run, accesses);
    tlb_model_leave(model);
    return 0;
}

/* In pieces of milliseconds, which come out as one would; in between the model is nobody's. */
static int run_pieces(struct tlb_model *model, struct tlb_run *run, uint64_t accesses,
                      const struct tlb_poll *poll)
{
    enum { PIECE = 4096 };
    size_t const place = run->kernel->together;
    uint64_t const batch = place && run->parameter[place] ? run->parameter[place] : 1;
    uint64_t const most = batch < PIECE ? PIECE - PIECE % batch : batch;
    int status;
    do {
        uint64_t const piece = accesses < most ? accesses : most;
        status = run_piece(model, run, piece);
        accesses -= piece;
        if (status == 0)
            status = tlb_ask(poll);
    } while (accesses > 0 && status == 0);
    return status;
}

int tlb_run_access(struct tlb_run *run, uint64_t accesses, const struct tlb_poll *poll)
{
    if (current)
        return run_pieces(current, run, accesses, poll);
    run->kernel->access(run, accesses);
    return 0;
}

void tlb_hook_prefetch(const void *address)
{
    if (current)
        tlb_model_prefetch(current, (uintptr_t)address);
}

void tlb_hook_jump(uint64_t address)
{
    if (current)
        tlb_model_jump(current, address);
}

/* -- Loads and stores -------------------------------------------------------------------------- */

enum { LINE = 64 };

static void load_word(const void *address)
{
    uint64_t value;
    if (!current)
        return;
    memcpy(&value, address, sizeof(value));
    tlb_model_load(current, (uintptr_t)address, value);
}

static void load(const void *address)
{
    if (current)
        tlb_model_load(current, (uintptr_t)address, 0);
}

static void store(const void *address)
{
    if (current)
        tlb_model_store(current, (uintptr_t)address);
}

/* One access a line, at its first byte. */
static void each_line(const void *address, size_t size, void (*access)(const void *address))
{
    const char *at = address;
    const char *const end = at + size;
    while (at < end) {
        access(at);
        at += LINE - (uintptr_t)at % LINE;
    }
}

/* -- The hooks, by the names that compilers know ----------------------------------------------- */

#define HOOK __attribute__((visibility("hidden"), used)) void

/* Reading and writing, and both where a compiler makes one call of them. */
#define HOOKS(name, size, LOOK)                \
    HOOK __tsan_##name##read##size(void *at);  \
    HOOK __tsan_##name##write##size(void *at); \
    HOOK __tsan_##name##read##size(void *at)   \
    {                                          \
        LOOK(at, size);                        \
    }                                          \
    HOOK __tsan_##name##write##size(void *at)  \
    {                                          \
        WRITE(at, size);                       \
    }

#define BOTH(name, size, LOOK)                      \
    HOOK __tsan_##name##read_write##size(void *at); \
    HOOK __tsan_##name##read_write##size(void *at)  \
    {                                               \
        LOOK(at, size);                             \
        WRITE(at, size);                            \
    }

/* An aligned access of a word or less is within a line. */
#define READ(at, size) load(at)
#define READ_WORD(at, size) load_word(at)
#define READ_LINES(at, size) each_line(at, size, load)
#define WRITE(at, size) store(at)

HOOKS(, 1, READ)
HOOKS(, 2, READ)
HOOKS(, 4, READ)
HOOKS(, 8, READ_WORD)
HOOKS(, 16, READ)
HOOKS(volatile_, 1, READ)
HOOKS(volatile_, 2, READ)
HOOKS(volatile_, 4, READ)
HOOKS(volatile_, 8, READ_WORD)
HOOKS(volatile_, 16, READ)
BOTH(, 1, READ)
BOTH(, 2, READ)
BOTH(, 4, READ)
BOTH(, 8, READ_WORD)
BOTH(, 16, READ)

#undef WRITE
#define WRITE(at, size) each_line(at, size, store)
HOOKS(unaligned_, 2, READ_LINES)
HOOKS(unaligned_, 4, READ_LINES)
HOOKS(unaligned_, 8, READ_LINES)
HOOKS(unaligned_, 16, READ_LINES)
HOOKS(unaligned_volatile_, 2, READ_LINES)
HOOKS(unaligned_volatile_, 4, READ_LINES)
HOOKS(unaligned_volatile_, 8, READ_LINES)
HOOKS(unaligned_volatile_, 16, READ_LINES)
BOTH(unaligned_, 2, READ_LINES)
BOTH(unaligned_, 4, READ_LINES)
BOTH(unaligned_, 8, READ_LINES)
BOTH(unaligned_, 16, READ_LINES)

HOOK __tsan_read_range(void *at, size_t size);
HOOK __tsan_read_range(void *at, size_t size)
{
    each_line(at, size, load);
}

HOOK __tsan_write_range(void *at, size_t size);
HOOK __tsan_write_range(void *at, size_t size)
{
    each_line(at, size, store);
}

/* clang calls these for copies and fills. */
__attribute__((visibility("hidden"), used)) void *__tsan_memcpy(void *to, const void *from, size_t size);
void *__tsan_memcpy(void *to, const void *from, size_t size)
{
    each_line(from, size, load);
    each_line(to, size, store);
    return memcpy(to, from, size);
}

__attribute__((visibility("hidden"), used)) void *__tsan_memmove(void *to, const void *from, size_t size);
void *__tsan_memmove(void *to, const void *from, size_t size)
{
    each_line(from, size, load);
    each_line(to, size, store);
    return memmove(to, from, size);
}

__attribute__((visibility("hidden"), used)) void *__tsan_memset(void *to, int byte, size_t size);
void *__tsan_memset(void *to, int byte, size_t size)
{
    each_line(to, size, store);
    return memset(to, byte, size);
}

/* What a compiler calls besides, and means nothing here. */
HOOK __tsan_init(void);
HOOK __tsan_init(void)
{
}

HOOK __tsan_func_entry(void *caller);
HOOK __tsan_func_entry(void *caller)
{
    (void)caller;
}

HOOK __tsan_func_exit(void *caller);
HOOK __tsan_func_exit(void *caller)
{
    (void)caller;
}

HOOK __tsan_vptr_update(void **at, void *value);
HOOK __tsan_vptr_update(void **at, void *value)
{
    (void)value;
    store(at);
}

HOOK __tsan_vptr_read(void **at);
HOOK __tsan_vptr_read(void **at)
{
    load_word(at);
}
