// A stand-in for libcuda on host memory, for tests where there is no GPU. It keeps CUDA's rules:
// streams are asynchronous, a copy may not leave one registration, memory is freed and unregistered
// once the whole device is idle, what is not freed is counted. Any call can be made to fail.
//
// Exported for tests, besides cuGetProcAddress_v2:
//   fake_fail_nth(n, code)      the n-th call from now (1 is the next) that can fail returns `code`
//   fake_fail_call(name, code)  every call of that name returns `code`; code 0 ends it
//   fake_calls()                calls that can fail, made since fake_reset()
//   fake_calls_of(name)         the same, of one name
//   fake_live(kind)             objects alive: "context", "stream", "event", "registration",
//                               "host", "device"; "blocked": frees that a held stream blocked;
//                               "pageable": copies from or to memory that nobody pinned
//   fake_priority(stream)       what the stream was made with: 0 at the least, -5 at the greatest
//   fake_hide(name, hidden)     whether the driver has no entry point of that name
//   fake_reset()                no failures, nothing hidden, and the calls counted from 0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../native/copy_table.hpp"
#include "../native/driver_abi.hpp"
#include "../native/host_stream.hpp"
#include "../native/process.hpp"

namespace {

using namespace pinferry::cuda;
using pinferry::CopyUnit;
using pinferry::HostEvent;
using pinferry::HostStream;
using pinferry::ProcessTag;

constexpr Result invalid_value = 1;
constexpr Result invalid_context = 201;
constexpr Result not_found = 500;
constexpr int greatest_priority = -5;
thread_local int contexts_current = 0;

struct FakeEvent {
    std::shared_ptr<HostEvent> recorded;
};

struct State {
    std::mutex mutex;
    std::map<std::string, long> live;
    std::map<std::string, Result> failing;
    std::set<std::string> hidden;
    std::map<std::string, long> calls_of;
    std::map<std::uintptr_t, std::size_t> pinned;  // registrations and host allocations
    std::map<std::uintptr_t, std::size_t> device;  // its allocations
    std::map<HostStream*, ProcessTag> streams;
    std::map<const HostStream*, int> priorities;
    long calls = 0;
    long fail_at = 0;
    Result fail_code = 0;
};

State& state() {
    static auto* instance = new State;  // streams may still run at exit
    return *instance;
}

Result fails(const char* call, bool can_fail_by_number = true) {
    State& fake = state();
    const std::lock_guard lock(fake.mutex);
    if (const auto found = fake.failing.find(call); found != fake.failing.end())
        return found->second;
    if (!can_fail_by_number) return success;
    ++fake.calls;
    ++fake.calls_of[call];
    return fake.calls == fake.fail_at ? fake.fail_code : success;
}

void count(const char* kind, long change) {
    const std::lock_guard lock(state().mutex);
    state().live[kind] += change;
}

bool within_one(const std::map<std::uintptr_t, std::size_t>& ranges, std::uintptr_t address,
                std::size_t bytes) {
    const std::lock_guard lock(state().mutex);
    const auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return false;
    const auto& [begin, size] = *std::prev(next);
    return address + bytes <= begin + size;
}
bool within_one_pinned_range(const void* host, std::size_t bytes) {
    return within_one(state().pinned, reinterpret_cast<std::uintptr_t>(host), bytes);
}
bool apart_from_pinned_memory(const void* host, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(host);
    const std::lock_guard lock(state().mutex);
    return std::all_of(state().pinned.begin(), state().pinned.end(), [&](const auto& range) {
        return address + bytes <= range.first || range.first + range.second <= address;
    });
}

// What the driver does in every call that frees or unregisters memory. A stream that is still held
// after so long waits for the very thread that is in here: a deadlock on a GPU.
void wait_until_the_device_is_idle() {
    const auto idle = [] {
        State& fake = state();
        const std::lock_guard lock(fake.mutex);
        return std::all_of(fake.streams.begin(), fake.streams.end(), [](const auto& entry) {
            const auto& [stream, process] = entry;
            return process.forked() || stream->idle();
        });
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!idle()) {
        if (std::chrono::steady_clock::now() >= deadline) return count("blocked", 1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

void* pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }
HostStream* stream_of(Stream stream) { return reinterpret_cast<HostStream*>(stream); }
FakeEvent* event_of(EventHandle event) { return reinterpret_cast<FakeEvent*>(event); }

bool copies_pinned_memory(DevicePtr target, DevicePtr source, std::size_t bytes) {
    return within_one_pinned_range(pointer(target), bytes) ||
           within_one_pinned_range(pointer(source), bytes);
}

#define FAKE_CALL(name)                                           \
    if (const Result failure = fails(name); failure != success) { \
        return failure;                                           \
    }
// Frees fail by name only: a failure by number must not leave what a test counts.
#define FAKE_FREE(name)                                                  \
    if (const Result failure = fails(name, false); failure != success) { \
        return failure;                                                  \
    }

Result cuInit(unsigned) { FAKE_CALL("cuInit") return success; }
Result cuDriverGetVersion(int* version) {
    FAKE_CALL("cuDriverGetVersion")* version = 13000;
    return success;
}
Result cuDeviceGetCount(int* devices) {
    FAKE_CALL("cuDeviceGetCount")* devices = 1;
    return success;
}
Result cuDeviceGet(DeviceOrdinal* device, int index) {
    FAKE_CALL("cuDeviceGet")* device = index;
    return success;
}

Result write_text(char* target, int room, const char* text) {
    std::strncpy(target, text, static_cast<std::size_t>(room) - 1);
    target[room - 1] = '\0';
    return success;
}
Result cuDeviceGetName(char* name, int room, DeviceOrdinal) {
    FAKE_CALL("cuDeviceGetName")
    return write_text(name, room, "fake GPU");
}
Result cuDeviceGetPCIBusId(char* name, int room, DeviceOrdinal) {
    FAKE_CALL("cuDeviceGetPCIBusId")
    return write_text(name, room, "0000:FA:00.0");
}
Result cuDeviceGetUuid(Uuid* uuid, DeviceOrdinal) {
    FAKE_CALL("cuDeviceGetUuid")
    for (char i = 0; i < 16; ++i) uuid->bytes[static_cast<int>(i)] = i;
    return success;
}

Result cuDeviceGetAttribute(int* value, int, DeviceOrdinal) {
    FAKE_CALL("cuDeviceGetAttribute")* value = 1;
    return success;
}

Result cuDevicePrimaryCtxRetain(Context* context, DeviceOrdinal) {
    FAKE_CALL("cuDevicePrimaryCtxRetain")
    static int one_context;
    *context = reinterpret_cast<Context>(&one_context);
    count("context", 1);
    return success;
}
Result cuDevicePrimaryCtxRelease(DeviceOrdinal) {
    FAKE_FREE("cuDevicePrimaryCtxRelease")
    count("context", -1);
    return success;
}
Result cuCtxPushCurrent(Context) {
    FAKE_CALL("cuCtxPushCurrent")
    ++contexts_current;
    return success;
}
Result cuCtxPopCurrent(Context*) {
    --contexts_current;
    FAKE_FREE("cuCtxPopCurrent")
    return success;
}

void pin(const char* kind, void* address, std::size_t bytes) {
    count(kind, 1);
    const std::lock_guard lock(state().mutex);
    state().pinned[reinterpret_cast<std::uintptr_t>(address)] = bytes;
}
Result unpin(const char* kind, void* address) {
    {
        const std::lock_guard lock(state().mutex);
        if (state().pinned.erase(reinterpret_cast<std::uintptr_t>(address)) == 0)
            return invalid_value;
    }
    count(kind, -1);
    return success;
}
Result cuMemHostRegister(void* address, std::size_t bytes, unsigned) {
    FAKE_CALL("cuMemHostRegister")
    if (contexts_current == 0) return invalid_context;
    pin("registration", address, bytes);
    return success;
}
Result cuMemHostUnregister(void* address) {
    FAKE_FREE("cuMemHostUnregister")
    if (contexts_current == 0) return invalid_context;
    wait_until_the_device_is_idle();
    return unpin("registration", address);
}
Result cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
    FAKE_CALL("cuMemHostAlloc")
    if (contexts_current == 0) return invalid_context;
    *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    pin("host", *address, bytes);
    return success;
}
Result cuMemFreeHost(void* address) {
    FAKE_FREE("cuMemFreeHost")
    if (contexts_current == 0) return invalid_context;
    wait_until_the_device_is_idle();
    const Result result = unpin("host", address);
    if (result == success) std::free(address);
    return result;
}
Result cuMemAlloc(DevicePtr* address, std::size_t bytes) {
    FAKE_CALL("cuMemAlloc")
    if (contexts_current == 0) return invalid_context;
    *address = reinterpret_cast<DevicePtr>(std::aligned_alloc(512, (bytes + 511) / 512 * 512));
    count("device", 1);
    const std::lock_guard lock(state().mutex);
    state().device[*address] = bytes;
    return success;
}
Result cuMemFree(DevicePtr address) {
    FAKE_FREE("cuMemFree")
    if (contexts_current == 0) return invalid_context;
    wait_until_the_device_is_idle();
    {
        const std::lock_guard lock(state().mutex);
        state().device.erase(address);
    }
    std::free(pointer(address));
    count("device", -1);
    return success;
}

// Leaves neither one registration nor one allocation of the device. Where nothing is pinned, the
// call returns when the bytes are there.
Result copy_between(const void* host, DevicePtr device, std::size_t bytes, DevicePtr target,
                    DevicePtr source, Stream stream) {
    const bool pageable = apart_from_pinned_memory(host, bytes);
    if (!stream || !within_one(state().device, device, bytes)) return invalid_value;
    if (!pageable && !within_one_pinned_range(host, bytes)) return invalid_value;
    stream_of(stream)->copy(target, source, bytes);
    if (pageable) {
        count("pageable", 1);
        stream_of(stream)->synchronize();
    }
    return success;
}
Result cuMemcpyDtoHAsync(void* host, DevicePtr device, std::size_t bytes, Stream stream) {
    FAKE_CALL("cuMemcpyDtoHAsync")
    return copy_between(host, device, bytes, reinterpret_cast<DevicePtr>(host), device, stream);
}
Result cuMemcpyHtoDAsync(DevicePtr device, const void* host, std::size_t bytes, Stream stream) {
    FAKE_CALL("cuMemcpyHtoDAsync")
    return copy_between(host, device, bytes, device, reinterpret_cast<DevicePtr>(host), stream);
}
Result cuMemcpyDtoDAsync(DevicePtr target, DevicePtr source, std::size_t bytes, Stream stream) {
    FAKE_CALL("cuMemcpyDtoDAsync")
    stream_of(stream)->copy(target, source, bytes);
    return success;
}
// In the form of CUDA 12.8.
Result cuMemcpyBatchAsync(DevicePtr* targets, DevicePtr* sources, std::size_t* sizes,
                          std::size_t count, CopyAttributes* attributes, std::size_t* first,
                          std::size_t attribute_sets, std::size_t* failed, Stream stream) {
    FAKE_CALL("cuMemcpyBatchAsync")
    if (!stream || count == 0 || attribute_sets != 1 || first[0] != 0) return invalid_value;
    if (attributes[0].source_access_order != copy_source_in_stream_order) return invalid_value;
    for (std::size_t i = 0; i < count; ++i) {
        *failed = i;
        if (sizes[i] == 0 || !copies_pinned_memory(targets[i], sources[i], sizes[i]))
            return invalid_value;
    }
    for (std::size_t i = 0; i < count; ++i)
        stream_of(stream)->copy(targets[i], sources[i], sizes[i]);
    return success;
}
// Every function is the gather kernel. It reads its table when it runs, as on a GPU.
Result cuLaunchKernel(Function function, unsigned blocks, unsigned, unsigned, unsigned threads,
                      unsigned, unsigned, unsigned, Stream stream, void** arguments, void**) {
    FAKE_CALL("cuLaunchKernel")
    if (contexts_current == 0) return invalid_context;
    if (!function || !stream || blocks == 0 || threads == 0) return invalid_value;
    const auto* units = *static_cast<const CopyUnit**>(arguments[0]);
    const auto count = *static_cast<unsigned long long*>(arguments[1]);
    if (count > 0 && !within_one_pinned_range(units, count * sizeof(CopyUnit)))
        return invalid_value;
    for (const CopyUnit* unit = units; unit != units + count; ++unit) {
        if (!copies_pinned_memory(unit->target, unit->source, unit->bytes)) return invalid_value;
    }
    stream_of(stream)->run_later([=] {
        for (const CopyUnit* unit = units; unit != units + count; ++unit)
            std::memcpy(pointer(unit->target), pointer(unit->source), unit->bytes);
    });
    return success;
}
Result cuMemsetD8Async(DevicePtr target, unsigned char value, std::size_t bytes, Stream stream) {
    FAKE_CALL("cuMemsetD8Async")
    stream_of(stream)->fill(target, value, bytes);
    return success;
}

Stream make_stream(int priority) {
    auto* made = new HostStream;
    count("stream", 1);
    const std::lock_guard lock(state().mutex);
    state().streams.emplace(made, ProcessTag());
    state().priorities[made] = priority;
    return reinterpret_cast<Stream>(made);
}
Result cuStreamCreate(Stream* stream, unsigned) {
    FAKE_CALL("cuStreamCreate")* stream = make_stream(0);
    return success;
}
Result cuStreamCreateWithPriority(Stream* stream, unsigned, int priority) {
    FAKE_CALL("cuStreamCreateWithPriority")
    if (contexts_current == 0) return invalid_context;
    *stream = make_stream(priority);
    return success;
}
Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    FAKE_CALL("cuCtxGetStreamPriorityRange")
    if (contexts_current == 0) return invalid_context;
    *least = 0;
    *greatest = greatest_priority;
    return success;
}
Result cuStreamDestroy(Stream stream) {
    FAKE_FREE("cuStreamDestroy") {
        const std::lock_guard lock(state().mutex);
        state().streams.erase(stream_of(stream));
        state().priorities.erase(stream_of(stream));
    }
    delete stream_of(stream);
    count("stream", -1);
    return success;
}
Result cuStreamSynchronize(Stream stream) {
    FAKE_CALL("cuStreamSynchronize")
    stream_of(stream)->synchronize();
    return success;
}
Result cuStreamQuery(Stream stream) {
    FAKE_FREE("cuStreamQuery")
    return stream_of(stream)->idle() ? success : error_not_ready;
}
Result cuStreamWaitEvent(Stream stream, EventHandle event, unsigned) {
    FAKE_CALL("cuStreamWaitEvent")
    const auto recorded = event_of(event)->recorded;
    if (!recorded) return success;
    if (stream) {
        stream_of(stream)->wait(recorded);
    } else {
        recorded->synchronize(std::nullopt);  // the calling thread plays the default stream
    }
    return success;
}
Result cuStreamWaitValue32(Stream stream, DevicePtr address, std::uint32_t value, unsigned) {
    FAKE_CALL("cuStreamWaitValue32")
    stream_of(stream)->run_later([=] {
        const auto* word = static_cast<const std::uint32_t*>(pointer(address));
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    });
    return success;
}

Result cuEventCreate(EventHandle* event, unsigned) {
    FAKE_CALL("cuEventCreate")
    *event = reinterpret_cast<EventHandle>(new FakeEvent);
    count("event", 1);
    return success;
}
Result cuEventDestroy(EventHandle event) {
    FAKE_FREE("cuEventDestroy")
    delete event_of(event);
    count("event", -1);
    return success;
}
Result cuEventRecord(EventHandle event, Stream stream) {
    FAKE_CALL("cuEventRecord")
    if (stream) {
        event_of(event)->recorded = stream_of(stream)->record();
    } else {
        event_of(event)->recorded = std::make_shared<HostEvent>();
        event_of(event)->recorded->set();
    }
    return success;
}
Result cuEventQuery(EventHandle event) {
    FAKE_CALL("cuEventQuery")
    return event_of(event)->recorded->complete() ? success : error_not_ready;
}
Result cuEventSynchronize(EventHandle event) {
    FAKE_CALL("cuEventSynchronize")
    event_of(event)->recorded->synchronize(std::nullopt);
    return success;
}
Result cuEventElapsedTime(float* milliseconds, EventHandle start, EventHandle end) {
    FAKE_CALL("cuEventElapsedTime")
    const auto from = event_of(start)->recorded->time();
    const auto to = event_of(end)->recorded->time();
    *milliseconds = std::chrono::duration<float, std::milli>(to - from).count();
    return success;
}
Result cuGetErrorName(Result, const char** name) {
    *name = "FAKE_ERROR";
    return success;
}
Result cuGetErrorString(Result, const char** text) {
    *text = "made to fail";
    return success;
}

}  // namespace

extern "C" {

Result cuGetProcAddress_v2(const char* symbol, void** found, int version, std::uint64_t, int*) {
    {
        const std::lock_guard lock(state().mutex);
        if (state().hidden.count(symbol) != 0) return not_found;
    }
#define FAKE_ENTRY(field, name, parameters)                                         \
    if (std::strcmp(symbol, #name) == 0) {                                          \
        *found = reinterpret_cast<void*>(static_cast<Result(*) parameters>(&name)); \
        return success;                                                             \
    }
    PINFERRY_DRIVER_CALLS(FAKE_ENTRY)
#undef FAKE_ENTRY
    // Only in the form that is declared: an earlier version has none, a later one another.
#define FAKE_OPTIONAL_ENTRY(field, name, since, parameters)                         \
    if (std::strcmp(symbol, #name) == 0 && version == since) {                      \
        *found = reinterpret_cast<void*>(static_cast<Result(*) parameters>(&name)); \
        return success;                                                             \
    }
    PINFERRY_OPTIONAL_DRIVER_CALLS(FAKE_OPTIONAL_ENTRY)
#undef FAKE_OPTIONAL_ENTRY
    return not_found;
}

void fake_fail_nth(long n, int code) {
    const std::lock_guard lock(state().mutex);
    state().fail_at = state().calls + n;
    state().fail_code = code;
}
void fake_fail_call(const char* name, int code) {
    const std::lock_guard lock(state().mutex);
    if (code == 0) {
        state().failing.erase(name);
    } else {
        state().failing[name] = code;
    }
}
void fake_hide(const char* name, bool hidden) {
    const std::lock_guard lock(state().mutex);
    if (hidden) {
        state().hidden.insert(name);
    } else {
        state().hidden.erase(name);
    }
}
long fake_calls() {
    const std::lock_guard lock(state().mutex);
    return state().calls;
}
long fake_calls_of(const char* name) {
    const std::lock_guard lock(state().mutex);
    return state().calls_of[name];
}
long fake_live(const char* kind) {
    const std::lock_guard lock(state().mutex);
    return state().live[kind];
}
int fake_priority(std::uintptr_t stream) {
    const std::lock_guard lock(state().mutex);
    return state().priorities.at(reinterpret_cast<const HostStream*>(stream));
}
void fake_reset() {
    const std::lock_guard lock(state().mutex);
    state().calls = 0;
    state().calls_of.clear();
    state().fail_at = 0;
    state().failing.clear();
    state().hidden.clear();
}

}  // extern "C"
