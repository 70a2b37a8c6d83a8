#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "backends/cpu/attention_kernels.h"
#include "backends/cpu/delta_kernels.h"
#include "backends/cpu/int8_kernels.h"
#include "backends/cpu/quantized_kernels.h"
#include "backends/cpu/sparse_kernels.h"
#include "backends/cpu/tile_kernels.h"
#include "backends/cpu/vector_kernels.h"

namespace tessl::cpu {

namespace baseline {
extern const VectorKernels kernels;
extern const QuantizedKernels quantized;
extern const AttentionKernels attention;
extern const DeltaKernels delta;
extern const SparseKernels sparse;
extern const TileKernels tiles;
extern const Int8Kernels int8;
} // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
extern const VectorKernels kernels;
extern const QuantizedKernels quantized;
extern const AttentionKernels attention;
extern const DeltaKernels delta;
extern const SparseKernels sparse;
extern const TileKernels tiles;
extern const Int8Kernels int8;
} // namespace avx2
namespace avx512 {
extern const VectorKernels kernels;
extern const QuantizedKernels quantized;
extern const AttentionKernels attention;
extern const DeltaKernels delta;
extern const SparseKernels sparse;
extern const TileKernels tiles;
extern const Int8Kernels int8;
} // namespace avx512
namespace avx512_vnni {
extern const Int8Kernels int8;
} // namespace avx512_vnni
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

// What is compiled once for each instruction set.
struct Kernels {
  const VectorKernels& vector;
  const QuantizedKernels& quantized;
  const AttentionKernels& attention;
  const DeltaKernels& delta;
  const SparseKernels& sparse;
  const TileKernels& tiles;
  const Int8Kernels& int8;
};

const Kernels& kernels_of([[maybe_unused]] std::string_view instruction_set) {
#if defined(__x86_64__)
  static const Kernels of_avx512{
      avx512::kernels, avx512::quantized, avx512::attention, avx512::delta, avx512::sparse, avx512::tiles, avx512::int8
  };
  static const Kernels of_avx2{
      avx2::kernels, avx2::quantized, avx2::attention, avx2::delta, avx2::sparse, avx2::tiles, avx2::int8
  };
  if (instruction_set == "avx512") {
    return of_avx512;
  }
  if (instruction_set == "avx2") {
    return of_avx2;
  }
#endif
  static const Kernels of_baseline{
      baseline::kernels,
      baseline::quantized,
      baseline::attention,
      baseline::delta,
      baseline::sparse,
      baseline::tiles,
      baseline::int8
  };
  return of_baseline;
}

const Kernels& choose() {
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
  return kernels_of("baseline");
}

const Kernels& chosen_kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

const Int8Kernels& choose_int8_kernels() {
  const Int8Kernels& chosen = chosen_kernels().int8;
#if defined(__x86_64__)
  const char* wanted = std::getenv("MLX_TESSL_CPU_ISA");
  const bool is_free = wanted == nullptr || *wanted == '\0';
  if (is_free && &chosen == &avx512::int8 && __builtin_cpu_supports("avx512vnni")) {
    return avx512_vnni::int8;
  }
#endif
  return chosen;
}

} // namespace

const VectorKernels& vector_kernels() {
  return chosen_kernels().vector;
}

const QuantizedKernels& quantized_kernels() {
  return chosen_kernels().quantized;
}

const AttentionKernels& attention_kernels() {
  return chosen_kernels().attention;
}

const Int8Kernels& int8_kernels() {
  static const Int8Kernels& chosen = choose_int8_kernels();
  return chosen;
}

const DeltaKernels& delta_kernels() {
  return chosen_kernels().delta;
}

const SparseKernels& sparse_kernels() {
  return chosen_kernels().sparse;
}

const TileKernels& tile_kernels() {
  return chosen_kernels().tiles;
}

} // namespace tessl::cpu
