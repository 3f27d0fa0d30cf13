/* The two events of the comparison: a number, and a stack as an array of words. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER ring_bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./tracepoints.h"

#if !defined(RING_BENCH_TRACEPOINTS_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define RING_BENCH_TRACEPOINTS_H

#include <lttng/tracepoint.h>
#include <stdint.h>

LTTNG_UST_TRACEPOINT_EVENT(ring_bench, number,
    LTTNG_UST_TP_ARGS(uint64_t, value),
    LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, value, value)))

LTTNG_UST_TRACEPOINT_EVENT(ring_bench, stack,
    LTTNG_UST_TP_ARGS(const uint64_t *, frames, size_t, depth),
    LTTNG_UST_TP_FIELDS(lttng_ust_field_sequence(uint64_t, frames, frames, size_t, depth)))

#endif

#include <lttng/tracepoint-event.h>
