// The same for entries whose form depends on the version that is asked for. NVIDIA's header
// declares the earlier forms, under their own names, only where it is told so; that hides other
// entries.
#define __CUDA_API_VERSION_INTERNAL
#include <cstddef>

#include "same_call.hpp"

namespace pinferry::cuda {

#if CUDA_VERSION >= 12080

#define PINFERRY_CHECK_OPTIONAL_CALL(field, symbol, version, parameters_)         \
    static_assert(version <= CUDA_VERSION);                                       \
    static_assert(SameCall<decltype(&symbol), Result(*) parameters_>::value,      \
                  #symbol " takes another number of parameters");                 \
    static_assert(SameCall<decltype(&symbol), Result(*) parameters_>::parameters, \
                  #symbol " takes other parameters");
PINFERRY_OPTIONAL_DRIVER_CALLS(PINFERRY_CHECK_OPTIONAL_CALL)

static_assert(sizeof(CUmemLocation) == sizeof(MemoryLocation));
static_assert(sizeof(CUmemcpyAttributes) == sizeof(CopyAttributes));
static_assert(offsetof(CUmemcpyAttributes, srcAccessOrder) ==
              offsetof(CopyAttributes, source_access_order));
static_assert(offsetof(CUmemcpyAttributes, srcLocHint) == offsetof(CopyAttributes, source_hint));
static_assert(offsetof(CUmemcpyAttributes, dstLocHint) == offsetof(CopyAttributes, target_hint));
static_assert(offsetof(CUmemcpyAttributes, flags) == offsetof(CopyAttributes, flags));
static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == copy_source_in_stream_order);

#endif

}  // namespace pinferry::cuda
