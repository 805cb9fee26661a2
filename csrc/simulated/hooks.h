/* What tells the model of accesses, and which model: the one pointer of this thread. */
#ifndef TLB_HOOKS_H
#define TLB_HOOKS_H

/* Whoever includes this is of the core that runs on the model. */
#ifndef TLB_SIMULATED
#define TLB_SIMULATED
#endif

#include "simulated/model.h"
#include "tlbprobe.h"

/* The model of this thread from now on, or NULL; returns the one until now. */
struct tlb_model *tlb_hook_use(struct tlb_model *model);
struct tlb_model *tlb_hook_model(void);

/* The model sees what tlb_run_access runs: -EFAULT where the run's bytes are not mapped. Without a model it
 * runs all the same, and nobody is asked. */

/* What no compiler tells of by itself. */
void tlb_hook_prefetch(const void *address);
void tlb_hook_jump(uint64_t address);

#endif
