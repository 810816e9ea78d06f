#include "cuda_context.hpp"

#include "error.hpp"

namespace pinferry::cuda {

std::shared_ptr<PrimaryContext> PrimaryContext::retain(int index) {
    return std::shared_ptr<PrimaryContext>(new PrimaryContext(Driver::get(), index));
}

PrimaryContext::PrimaryContext(const Driver& driver, int index) : driver_(driver) {
    int count = 0;
    check(driver_, "cuDeviceGetCount", driver_.device_count(&count));
    if (index < 0 || index >= count) {
        throw Error("DeviceNotFound",
                    "there is no cuda:" + std::to_string(index) + ": this process sees " +
                        std::to_string(count) + (count == 1 ? " GPU" : " GPUs") +
                        " (CUDA_VISIBLE_DEVICES may hide others)",
                    {{"index", index}, {"count", count}});
    }
    check(driver_, "cuDeviceGet", driver_.device_get(&ordinal_, index));
    check(driver_, "cuDevicePrimaryCtxRetain", driver_.primary_context_retain(&context_, ordinal_));
}

PrimaryContext::~PrimaryContext() {
    if (!process_.forked()) driver_.primary_context_release(ordinal_);
}

PrimaryContext::Scope::Scope(const PrimaryContext& context) : context_(context) {
    context_.process_.require_same_process("this CUDA device");
    check(context_.driver_, "cuCtxPushCurrent", context_.driver_.context_push(context_.context_));
    pushed_ = true;
}

PrimaryContext::Scope::Scope(const PrimaryContext& context, std::nothrow_t) noexcept
    : context_(context) {
    if (context_.process_.forked()) return;
    pushed_ = context_.driver_.context_push(context_.context_) == success;
}

PrimaryContext::Scope::~Scope() {
    Context popped = nullptr;
    if (pushed_) context_.driver_.context_pop(&popped);
}

bool maps_host_memory(const PrimaryContext& context) {
    int one_address = 0;
    check(context.driver(), "cuDeviceGetAttribute",
          context.driver().device_attribute(
              &one_address, attribute_host_pointer_for_registered_memory, context.ordinal()));
    return one_address != 0;
}

}  // namespace pinferry::cuda
