#include "backends/cpu/quantized_embedding.h"

#include <algorithm>

#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

namespace tessl::cpu {
namespace {

constexpr int64_t values_at_once = 64 * 1024;

thread_local Scratch row_scratch;

void write_row(const QuantizedEmbedding& e, int64_t i) {
  const Element element = element_of(e.dtype);
  const int64_t count = e.w.values;
  void* out = advance(e.out, element, i * count);
  float* weights = element == Element::float32 ? static_cast<float*>(out) : row_scratch.reserve(count);
  const int64_t id = e.ids[static_cast<size_t>(i)];
  const int64_t row = id < 0 ? id + e.rows : id;
  if (row < 0 || row >= e.rows) {
    std::fill_n(weights, count, 0.0f);
  } else {
    PackedRows packed(e.w, e.dtype);
    packed.prepare({row, row + 1});
    quantized_kernels().dequantize(e.w.quantization, weights, packed.row(row), 0, count);
  }
  if (element != Element::float32) {
    vector_kernels().finish(element, out, weights, {}, count);
  }
}

} // namespace

void quantized_embedding(const QuantizedEmbedding& e) {
  const auto count = static_cast<int64_t>(e.ids.size());
  const int64_t at_once = std::max<int64_t>(1, values_at_once / std::max<int64_t>(1, e.w.values));
  ThreadPool::instance().parallel_for(ceil_div(count, at_once), [&](int64_t block) {
    for (int64_t i = block * at_once; i < std::min((block + 1) * at_once, count); ++i) {
      write_row(e, i);
    }
  });
}

} // namespace tessl::cpu
