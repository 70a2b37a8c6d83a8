#include "ops/precision.h"

#include <cstdlib>

#include "ops/refusal.h"

namespace tessl {

bool parse_precision(std::string_view op, const std::optional<std::string>& precision) {
  static const bool enable_tf32 = [] {
    const char* value = std::getenv("MLX_ENABLE_TF32");
    return value == nullptr || std::atoi(value) != 0;
  }();
  if (!precision) {
    return enable_tf32;
  }
  if (*precision != "exact" && *precision != "relaxed") {
    refuse(op, "precision is '", *precision, "'; it must be None, 'exact' or 'relaxed'");
  }
  return *precision == "relaxed";
}

} // namespace tessl
