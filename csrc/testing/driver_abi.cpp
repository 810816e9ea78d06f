// Holds the core's own declarations of the driver's interface against NVIDIA's header. Compiling it
// is the test: `make abi`.
#include "same_call.hpp"

namespace pinferry::cuda {

// The header maps unversioned names to the version that belongs to its CUDA; those of later
// versions than ours keep the same parameters.
#define PINFERRY_CHECK_CALL(field, symbol, parameters_)                           \
    static_assert(SameCall<decltype(&symbol), Result(*) parameters_>::value,      \
                  #symbol " takes another number of parameters");                 \
    static_assert(SameCall<decltype(&symbol), Result(*) parameters_>::parameters, \
                  #symbol " takes other parameters");
PINFERRY_DRIVER_CALLS(PINFERRY_CHECK_CALL)

static_assert(sizeof(CUresult) == sizeof(Result));
static_assert(sizeof(CUdevice) == sizeof(DeviceOrdinal));
static_assert(sizeof(CUdeviceptr) == sizeof(DevicePtr));
static_assert(sizeof(CUuuid) == sizeof(Uuid));
static_assert(CUDA_SUCCESS == success);
static_assert(CUDA_ERROR_OUT_OF_MEMORY == error_out_of_memory);
static_assert(CUDA_ERROR_NOT_READY == error_not_ready);
static_assert(CUDA_ERROR_NOT_SUPPORTED == error_not_supported);
static_assert(CU_STREAM_NON_BLOCKING == stream_non_blocking);
static_assert(CU_EVENT_DEFAULT == event_default);
static_assert(CU_EVENT_DISABLE_TIMING == event_disable_timing);
static_assert(CU_MEMHOSTREGISTER_PORTABLE == register_portable);
static_assert(CU_MEMHOSTALLOC_PORTABLE == host_alloc_portable);
static_assert(CU_STREAM_WAIT_VALUE_GEQ == wait_value_geq);
static_assert(CU_GET_PROC_ADDRESS_DEFAULT == proc_address_default);
static_assert(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM ==
              attribute_host_pointer_for_registered_memory);

}  // namespace pinferry::cuda
