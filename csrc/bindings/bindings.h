#pragma once

#include <nanobind/nanobind.h>

namespace tessl {

void bind_attention(nanobind::module_& m);
void bind_attention_plans(nanobind::module_& m);
void bind_backends(nanobind::module_& m);
void bind_emulation(nanobind::module_& m);
void bind_gated_delta(nanobind::module_& m);
void bind_gated_delta_plans(nanobind::module_& m);
void bind_gates(nanobind::module_& m);
void bind_int8_matmul(nanobind::module_& m);
void bind_kv_store(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_norms(nanobind::module_& m);
void bind_plans(nanobind::module_& m);
void bind_quantized(nanobind::module_& m);
void bind_quantized_plans(nanobind::module_& m);
void bind_reductions(nanobind::module_& m);
void bind_rope(nanobind::module_& m);
void bind_row_plans(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_segment_mean(nanobind::module_& m);
void bind_shaders(nanobind::module_& m);
void bind_sparse_max_pool(nanobind::module_& m);
void bind_trace(nanobind::module_& m);

} // namespace tessl
