/*
 * The bytes of a cell. Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; Arm
 * Architecture Reference Manual for A-profile, C6. Both instruction sets are little-endian.
 */
#include "code.h"

#include <errno.h>
#include <string.h>

static void put(unsigned char *bytes, uint64_t value, int count)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
}

static uint32_t get32(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* -- x86-64: distances count from the end of their instruction, 32 bits with a sign. ------------------ */

enum { X86_JUMP = 7, X86_JUMP_END = 11, X86_LEA = 14, X86_LEA_END = 18, X86_BREAK = 0xcc };

static int x86_64_write(unsigned char *cell, uint64_t address, uint64_t next)
{
    static const unsigned char code[] = {
        0x48, 0x83, 0xef, 0x01,                   /*     sub  $1, %rdi          */
        0x74, 0x05,                               /*     jz   1f                */
        0xe9, 0x00, 0x00, 0x00, 0x00,             /*     jmp  next              */
        0x48, 0x8d, 0x05, 0x00, 0x00, 0x00, 0x00, /* 1:  lea  next(%rip), %rax  */
        0xc3,                                     /*     ret                    */
    };
    int64_t const jump = (int64_t)(next - (address + X86_JUMP_END));
    int64_t const lea = (int64_t)(next - (address + X86_LEA_END));
    if (jump > INT32_MAX || lea < INT32_MIN)
        return -ERANGE;
    memset(cell, X86_BREAK, TLB_CODE_CELL);
    memcpy(cell, code, sizeof(code));
    put(cell + X86_JUMP, (uint64_t)jump, 4);
    put(cell + X86_LEA, (uint64_t)lea, 4);
    return 0;
}

static uint64_t x86_64_target(const unsigned char *cell, uint64_t address)
{
    return address + X86_JUMP_END + (uint64_t)(int32_t)get32(cell + X86_JUMP);
}

const struct tlb_code tlb_code_x86_64 = {
    .reach = UINT64_C(1) << 31,
    .write = x86_64_write,
    .target = x86_64_target,
};

/* -- aarch64: distances count in instructions from their own, 26 bits with a sign. -------------------- */

enum { ARM_JUMP = 8, ARM_LITERAL = 24, ARM_DISTANCE = 0x3ffffff };

static int aarch64_write(unsigned char *cell, uint64_t address, uint64_t next)
{
    static const uint32_t code[] = {
        0xf1000400, /*     subs x0, x0, #1  */
        0x54000040, /*     b.eq 1f          */
        0x14000000, /*     b    next        */
        0x58000060, /* 1:  ldr  x0, 2f      */
        0xd65f03c0, /*     ret              */
        0xd4200000, /*     brk  #0;  2: .quad next  */
    };
    int64_t const jump = (int64_t)(next - (address + ARM_JUMP));
    if (jump % 4 || jump < -(INT64_C(1) << 27) || jump >= INT64_C(1) << 27)
        return -ERANGE;
    for (int i = 0; i < ARM_LITERAL / 4; i++)
        put(cell + 4 * i, code[i], 4);
    put(cell + ARM_JUMP, code[ARM_JUMP / 4] | ((uint64_t)(jump / 4) & ARM_DISTANCE), 4);
    put(cell + ARM_LITERAL, next, 8);
    return 0;
}

static uint64_t aarch64_target(const unsigned char *cell, uint64_t address)
{
    int32_t const distance = (int32_t)(get32(cell + ARM_JUMP) << 6) / 16; /* the sign is bit 25 */
    return address + ARM_JUMP + (uint64_t)(int64_t)distance;
}

const struct tlb_code tlb_code_aarch64 = {
    .reach = UINT64_C(1) << 27,
    .write = aarch64_write,
    .target = aarch64_target,
};

/* -- Either ------------------------------------------------------------------------------------------- */

const struct tlb_code *tlb_code_here(void)
{
#if defined(__x86_64__)
    return &tlb_code_x86_64;
#elif defined(__aarch64__)
    return &tlb_code_aarch64;
#else
    return NULL;
#endif
}

/* Written again, a whole cell comes out the same, to the last byte. */
uint64_t tlb_code_next(const struct tlb_code *code, const unsigned char *cell, uint64_t address)
{
    unsigned char again[TLB_CODE_CELL];
    uint64_t const next = code->target(cell, address);
    int const status = code->write(again, address, next);
    return status == 0 && memcmp(cell, again, sizeof(again)) == 0 ? next : 0;
}
