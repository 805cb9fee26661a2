/* What only the instruction set knows. */
#include "tlbprobe.h"

#include <errno.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <x86intrin.h>

uint64_t tlb_ticks(void)
{
    return __rdtsc();
}

int tlb_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4])
{
    __cpuid_count(leaf, subleaf, registers[0], registers[1], registers[2], registers[3]);
    return 0;
}

#else

uint64_t tlb_ticks(void)
{
#if defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

int tlb_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4])
{
    (void)leaf, (void)subleaf, (void)registers;
    return -ENOSYS;
}

#endif
