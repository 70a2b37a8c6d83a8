#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <mlx/array.h>
#include <mlx/version.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

NB_MODULE(_ext, m) {
  m.doc() = "C++ primitives of mlx_tessl.";
  m.def(
      "loaded_mlx_version",
      [] { return std::string(mlx::core::version()); },
      "The version of the libmlx in this process."
  );
  m.def(
      "sees_mlx_arrays",
      [] { return nb::type<mlx::core::array>().is_valid(); },
      "Whether mlx.core.array is known here: false when mlx.core is not imported or uses another nanobind ABI."
  );
  tessl::bind_attention(m);
  tessl::bind_backends(m);
  tessl::bind_emulation(m);
  tessl::bind_gated_delta(m);
  tessl::bind_gates(m);
  tessl::bind_kv_store(m);
  tessl::bind_matmul(m);
  tessl::bind_norms(m);
  tessl::bind_plans(m);
  tessl::bind_gated_delta_plans(m);
  tessl::bind_attention_plans(m);
  tessl::bind_int8_matmul(m);
  tessl::bind_quantized(m);
  tessl::bind_quantized_plans(m);
  tessl::bind_reductions(m);
  tessl::bind_rope(m);
  tessl::bind_row_plans(m);
  tessl::bind_sampling(m);
  tessl::bind_segment_mean(m);
  tessl::bind_shaders(m);
  tessl::bind_sparse_max_pool(m);
  tessl::bind_trace(m);
}
