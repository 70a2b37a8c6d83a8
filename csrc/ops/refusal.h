#pragma once

#include <sstream>
#include <stdexcept>
#include <string_view>

namespace tessl {

// Throws std::invalid_argument, a ValueError in Python: the op in brackets, then the parts one after another.
template <typename... Parts>
[[noreturn]] void refuse(std::string_view op, const Parts&... parts) {
  std::ostringstream message;
  message << "[" << op << "] ";
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

} // namespace tessl
