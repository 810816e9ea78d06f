#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pinferry {

// One failure of the core. `kind` names a class of pinferry.errors, `fields` become its attributes.
// Bindings turn it into that class; C++ code catches it by type and, where it must, by kind.
class Error : public std::runtime_error {
  public:
    using Fields = std::vector<std::pair<std::string, std::int64_t>>;

    Error(std::string kind, const std::string& message, Fields fields = {})
        : std::runtime_error(message), kind_(std::move(kind)), fields_(std::move(fields)) {}

    const std::string& kind() const noexcept { return kind_; }
    const Fields& fields() const noexcept { return fields_; }

  private:
    std::string kind_;
    Fields fields_;
};

}  // namespace pinferry
