/*
 * Cells of machine code that jump from one to the next: pure functions on bytes, of both instruction sets on
 * any machine.
 *
 * A cell is called with a number of accesses of at least 1 and counts one of them. If any are left it jumps
 * to the next cell; if none is, it returns the address of the next cell. So as many cells run as there
 * are accesses, and whoever calls what was returned goes on where they ended.
 */
#ifndef TLB_CODE_H
#define TLB_CODE_H

#include <stdint.h>

enum { TLB_CODE_CELL = 32 }; /* bytes of a cell: it begins on a multiple of them */

struct tlb_code {
    uint64_t reach; /* bytes of memory within which every cell can jump to every other one */
    int (*write)(unsigned char *cell, uint64_t address,
                 uint64_t next);                                     /* -ERANGE, unwritten: too far apart */
    uint64_t (*target)(const unsigned char *cell, uint64_t address); /* that the jump alone names */
};

extern const struct tlb_code tlb_code_x86_64, tlb_code_aarch64;

/* That of this machine; NULL: there is none. */
const struct tlb_code *tlb_code_here(void);

/* Address of the cell after the one at `address`; 0 if its bytes are not those of a whole cell. */
uint64_t tlb_code_next(const struct tlb_code *code, const unsigned char *cell, uint64_t address);

#endif
