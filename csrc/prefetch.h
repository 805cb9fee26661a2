/* A prefetch for reading. No compiler tells of one in code that it instruments, so it is told here. */
#ifndef TLB_PREFETCH_H
#define TLB_PREFETCH_H

#ifdef TLB_SIMULATED
#include "simulated/hooks.h"
#define tlb_prefetch(address) tlb_hook_prefetch(address)
#else
#define tlb_prefetch(address) __builtin_prefetch(address)
#endif

#endif
