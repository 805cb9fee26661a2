/* Sets of entries: what TLBs, page-walk caches and data caches are made of. A key stands for one entry and is
 * never zero; the number that comes with it chooses the set. */
#ifndef TLB_SETS_H
#define TLB_SETS_H

#include "simulated/model.h"

#include <stdbool.h>

enum { TLB_SETS_SCANNED = 16 /* ways at most of a set that has a head; keys of larger ones are hashed */ };

#define TLB_NOWHERE UINT64_MAX

/* All of a set that is needed to miss it. */
struct tlb_set_head {
    uint64_t order; /* LRU: ways, 4 bits each, from the one used last; PLRU: nodes of the tree, a bit each */
    uint64_t tags[2]; /* 8 bits of each key; 0: empty */
    uint64_t filled;  /* PLRU and random: entries that have been used */
};

struct tlb_sets {
    uint64_t *keys;  /* [sets * ways]; 0: empty */
    uint64_t *ready; /* when what an entry holds will have come; NULL: that does not matter */
    uint64_t sets, ways;
    unsigned bits; /* 2^bits sets, where that is so */
    bool power;
    enum tlb_model_index index;
    enum tlb_model_replacement replacement;
    uint64_t random;            /* counter of its random numbers */
    struct tlb_set_head *heads; /* NULL: has the arrays below instead */
    /* Places of keys by hash, plus one: chains that begin in a bucket. */
    uint32_t *bucket, *next;
    unsigned bucket_bits;
    /* LRU: the place that was used just after and just before each one; first and last place of each set. */
    uint32_t *newer, *older, *newest, *oldest;
    uint32_t *filled; /* as in a head */
    uint64_t *tree;   /* as in a head, of so many words */
    uint64_t words;
};

/* -ENOMEM; free it then too. Its configuration has been checked. */
int tlb_sets_make(struct tlb_sets *sets, const struct tlb_model_sets *config, uint64_t seed, bool timed);
void tlb_sets_free(struct tlb_sets *sets);

/* The place of a key, which counts as a use of it; TLB_NOWHERE: it is not there. */
uint64_t tlb_sets_find(struct tlb_sets *sets, uint64_t number, uint64_t key);

/* Puts a key that is not there; returns its place. */
uint64_t tlb_sets_put(struct tlb_sets *sets, uint64_t number, uint64_t key);

/* Somebody else's key takes a place that a random word chooses. */
void tlb_sets_take(struct tlb_sets *sets, uint64_t word, uint64_t key);

#endif
