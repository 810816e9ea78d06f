#pragma once

#include <cstddef>
#include <cstdint>

// The part of the CUDA driver's binary interface that the core calls, declared here so that it
// builds with a C++ compiler alone. csrc/testing/driver_abi*.cpp hold it against NVIDIA's header.
namespace pinferry::cuda {

using Result = int;               // CUresult
using DeviceOrdinal = int;        // CUdevice
using DevicePtr = std::uint64_t;  // CUdeviceptr
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using EventHandle = struct EventTag*;
using Function = struct FunctionTag*;
struct Uuid {
    char bytes[16];
};
struct MemoryLocation {  // CUmemLocation
    int type;
    int id;
};
struct CopyAttributes {  // CUmemcpyAttributes
    int source_access_order;
    MemoryLocation source_hint;
    MemoryLocation target_hint;
    unsigned flags;
};

constexpr Result success = 0;
constexpr Result error_out_of_memory = 2;
constexpr Result error_not_ready = 600;
constexpr Result error_not_supported = 801;

constexpr unsigned stream_non_blocking = 1;
constexpr unsigned event_default = 0;
constexpr unsigned event_disable_timing = 2;
constexpr unsigned register_portable = 1;
constexpr unsigned host_alloc_portable = 1;
constexpr unsigned wait_value_geq = 0;
constexpr std::uint64_t proc_address_default = 0;
constexpr int attribute_host_pointer_for_registered_memory = 91;
constexpr int copy_source_in_stream_order = 1;

// X(field, symbol, parameters): one entry a line. Symbols carry no _v2: cuGetProcAddress picks the
// version that belongs to `api_version`.
constexpr int api_version = 12000;

#define PINFERRY_DRIVER_CALLS(X)                                                               \
    X(init, cuInit, (unsigned))                                                                \
    X(driver_version, cuDriverGetVersion, (int*))                                              \
    X(device_count, cuDeviceGetCount, (int*))                                                  \
    X(device_get, cuDeviceGet, (DeviceOrdinal*, int))                                          \
    X(device_name, cuDeviceGetName, (char*, int, DeviceOrdinal))                               \
    X(device_uuid, cuDeviceGetUuid, (Uuid*, DeviceOrdinal))                                    \
    X(device_pci_bus_id, cuDeviceGetPCIBusId, (char*, int, DeviceOrdinal))                     \
    X(device_attribute, cuDeviceGetAttribute, (int*, int, DeviceOrdinal))                      \
    X(primary_context_retain, cuDevicePrimaryCtxRetain, (Context*, DeviceOrdinal))             \
    X(primary_context_release, cuDevicePrimaryCtxRelease, (DeviceOrdinal))                     \
    X(context_push, cuCtxPushCurrent, (Context))                                               \
    X(context_pop, cuCtxPopCurrent, (Context*))                                                \
    X(host_register, cuMemHostRegister, (void*, std::size_t, unsigned))                        \
    X(host_unregister, cuMemHostUnregister, (void*))                                           \
    X(host_alloc, cuMemHostAlloc, (void**, std::size_t, unsigned))                             \
    X(host_free, cuMemFreeHost, (void*))                                                       \
    X(memory_alloc, cuMemAlloc, (DevicePtr*, std::size_t))                                     \
    X(memory_free, cuMemFree, (DevicePtr))                                                     \
    X(copy_to_host, cuMemcpyDtoHAsync, (void*, DevicePtr, std::size_t, Stream))                \
    X(copy_to_device, cuMemcpyHtoDAsync, (DevicePtr, const void*, std::size_t, Stream))        \
    X(copy_on_device, cuMemcpyDtoDAsync, (DevicePtr, DevicePtr, std::size_t, Stream))          \
    X(fill, cuMemsetD8Async, (DevicePtr, unsigned char, std::size_t, Stream))                  \
    X(launch_kernel, cuLaunchKernel,                                                           \
      (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
       void**, void**))                                                                        \
    X(stream_create, cuStreamCreate, (Stream*, unsigned))                                      \
    X(stream_create_with_priority, cuStreamCreateWithPriority, (Stream*, unsigned, int))       \
    X(priority_range, cuCtxGetStreamPriorityRange, (int*, int*))                               \
    X(stream_destroy, cuStreamDestroy, (Stream))                                               \
    X(stream_query, cuStreamQuery, (Stream))                                                   \
    X(stream_synchronize, cuStreamSynchronize, (Stream))                                       \
    X(stream_wait_event, cuStreamWaitEvent, (Stream, EventHandle, unsigned))                   \
    X(stream_wait_value, cuStreamWaitValue32, (Stream, DevicePtr, std::uint32_t, unsigned))    \
    X(event_create, cuEventCreate, (EventHandle*, unsigned))                                   \
    X(event_destroy, cuEventDestroy, (EventHandle))                                            \
    X(event_record, cuEventRecord, (EventHandle, Stream))                                      \
    X(event_query, cuEventQuery, (EventHandle))                                                \
    X(event_synchronize, cuEventSynchronize, (EventHandle))                                    \
    X(event_elapsed, cuEventElapsedTime, (float*, EventHandle, EventHandle))                   \
    X(error_name, cuGetErrorName, (Result, const char**))                                      \
    X(error_string, cuGetErrorString, (Result, const char**))

// X(field, symbol, version, parameters): entries that a driver may lack, and the version of CUDA
// whose form of them is meant. A driver of CUDA 13 still serves the form of 12.8 to who asks for
// it; the later one, without the place of the failure, adds nothing.
#define PINFERRY_OPTIONAL_DRIVER_CALLS(X)                                                \
    X(copy_batch, cuMemcpyBatchAsync, 12080,                                             \
      (DevicePtr*, DevicePtr*, std::size_t*, std::size_t, CopyAttributes*, std::size_t*, \
       std::size_t, std::size_t*, Stream))

}  // namespace pinferry::cuda
