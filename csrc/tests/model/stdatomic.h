/* Stands before the compiler's own <stdatomic.h> on the include path of the model: the core's sources are compiled as
 * they are, and every atomic operation they make becomes a step of the explorer (explore.h).
 */
#ifndef IGNIS_MODEL_STDATOMIC_H
#define IGNIS_MODEL_STDATOMIC_H

#include <stddef.h>
#include <stdint.h>

typedef enum memory_order {
    memory_order_relaxed = __ATOMIC_RELAXED,
    memory_order_acquire = __ATOMIC_ACQUIRE,
    memory_order_release = __ATOMIC_RELEASE,
    memory_order_acq_rel = __ATOMIC_ACQ_REL,
    memory_order_seq_cst = __ATOMIC_SEQ_CST
} memory_order;

uint64_t model_load(const volatile void *at, size_t bytes, memory_order order);
void model_store(volatile void *at, size_t bytes, uint64_t value, memory_order order);
uint64_t model_exchange(volatile void *at, size_t bytes, uint64_t value, memory_order order);
uint64_t model_add(volatile void *at, size_t bytes, uint64_t value, memory_order order);

/* The value's own type: the comma drops _Atomic and const. */
#define MODEL_VALUE(p) __typeof__(((void)0, *(p)))

#define atomic_init(p, v) ((void)__atomic_store_n((MODEL_VALUE(p) *)(p), (MODEL_VALUE(p))(v), __ATOMIC_RELAXED))
#define atomic_load_explicit(p, o) ((MODEL_VALUE(p))model_load((p), sizeof *(p), (o)))
#define atomic_store_explicit(p, v, o) (model_store((p), sizeof *(p), (uint64_t)(MODEL_VALUE(p))(v), (o)))
#define atomic_exchange_explicit(p, v, o) ((MODEL_VALUE(p))model_exchange((p), sizeof *(p), (uint64_t)(v), (o)))
#define atomic_fetch_add_explicit(p, v, o) ((MODEL_VALUE(p))model_add((p), sizeof *(p), (uint64_t)(v), (o)))

#endif
