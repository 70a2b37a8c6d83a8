#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "backends/cpu/vector_kernels.h"

namespace tessl::cpu {

namespace baseline {
extern const VectorKernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const VectorKernels kernels;
}
namespace avx512 {
extern const VectorKernels kernels;
}
#endif

namespace {

bool supported(std::string_view instruction_set) {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  if (instruction_set == "avx2") {
    return has_avx2;
  }
  if (instruction_set == "avx512") {
    return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  }
#endif
  return instruction_set == "baseline";
}

const VectorKernels& kernels_of([[maybe_unused]] std::string_view instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == "avx512") {
    return avx512::kernels;
  }
  if (instruction_set == "avx2") {
    return avx2::kernels;
  }
#endif
  return baseline::kernels;
}

const VectorKernels& choose() {
  const char* wanted = std::getenv("MLX_TESSL_CPU_ISA");
  if (wanted != nullptr && *wanted != '\0') {
    if (!supported(wanted)) {
      throw std::invalid_argument(
          "[mlx_tessl] MLX_TESSL_CPU_ISA is \"" + std::string(wanted) +
          "\", which this CPU or this build has not; expected baseline, avx2 or avx512."
      );
    }
    return kernels_of(wanted);
  }
  for (const auto* best : {"avx512", "avx2"}) {
    if (supported(best)) {
      return kernels_of(best);
    }
  }
  return baseline::kernels;
}

} // namespace

const VectorKernels& vector_kernels() {
  static const VectorKernels& chosen = choose();
  return chosen;
}

} // namespace tessl::cpu
