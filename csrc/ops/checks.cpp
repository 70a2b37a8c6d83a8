#include "ops/checks.h"

#include <cstdint>
#include <limits>

namespace tessl {

mx::array as_int32(const mx::array& x, mx::Stream s) {
  constexpr auto lowest = std::numeric_limits<int32_t>::min();
  constexpr auto highest = std::numeric_limits<int32_t>::max();
  if (x.dtype() == mx::int64) {
    const auto fitting = mx::clip(x, mx::array(lowest, mx::int64), mx::array(highest, mx::int64), s);
    return mx::astype(fitting, mx::int32, s);
  }
  if (x.dtype() == mx::uint32 || x.dtype() == mx::uint64) {
    return mx::astype(mx::minimum(x, mx::array(highest, x.dtype()), s), mx::int32, s);
  }
  return mx::astype(x, mx::int32, s);
}

} // namespace tessl
