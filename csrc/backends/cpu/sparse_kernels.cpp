#include "backends/cpu/sparse_kernels.h"

#include "backends/cpu/vector_math.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

constexpr int64_t panel_words = 2 * lanes;

TESSL_INLINE Floats activate_logit(Floats logit, SparseActivation activation) {
  const Floats once = log1p_of_positive(relu(logit));
  return activation == SPARSE_ACTIVATION_LOG1P_LOG1P_RELU ? log1p_of_positive(once) : once;
}

// The greater; a NaN of either.
TESSL_INLINE Floats larger(Floats a, Floats b) {
  return ((b > a) | (b != b)) ? b : a;
}

// 2 vectors of sums a token: with two of weights and one of a unit, what 16 registers hold.
template <int TOKENS>
TESSL_INLINE void pool(
    float* pooled,
    const float* tokens,
    int64_t token_stride,
    const float* panel,
    int64_t units,
    const float* bias,
    SparseActivation activation,
    bool sums
) {
  Floats logits[TOKENS][2] = {};
  for (int64_t unit = 0; unit < units; ++unit) {
    const Floats first = read<Floats>(panel + unit * panel_words);
    const Floats second = read<Floats>(panel + unit * panel_words + lanes);
    for (int token = 0; token < TOKENS; ++token) {
      const Floats x = splat(tokens[token * token_stride + unit]);
      logits[token][0] += x * first;
      logits[token][1] += x * second;
    }
  }
  for (int half = 0; half < 2; ++half) {
    Floats all = read<Floats>(pooled + half * lanes);
    const Floats b = read<Floats>(bias + half * lanes);
    for (int token = 0; token < TOKENS; ++token) {
      const Floats logit = logits[token][half];
      all = sums ? all + activate_logit(logit + b, activation) : larger(all, logit);
    }
    write(pooled + half * lanes, all);
  }
}

void pool_tokens(
    float* pooled,
    const float* tokens,
    int64_t token_stride,
    int64_t count,
    const float* panel,
    int64_t units,
    const float* bias,
    SparseActivation activation,
    bool sums
) {
  switch (count) {
    case 1:
      return pool<1>(pooled, tokens, token_stride, panel, units, bias, activation, sums);
    case 2:
      return pool<2>(pooled, tokens, token_stride, panel, units, bias, activation, sums);
    case 3:
      return pool<3>(pooled, tokens, token_stride, panel, units, bias, activation, sums);
    case 4:
      return pool<4>(pooled, tokens, token_stride, panel, units, bias, activation, sums);
    case 5:
      return pool<5>(pooled, tokens, token_stride, panel, units, bias, activation, sums);
    case max_pooled_tokens:
      return pool<max_pooled_tokens>(pooled, tokens, token_stride, panel, units, bias, activation, sums);
    default:
      __builtin_unreachable();
  }
}

void activate(float* out, const float* x, const float* bias, SparseActivation activation, int64_t count) {
  for (int64_t i = 0; i < count; i += lanes) {
    write(out + i, activate_logit(read<Floats>(x + i) + read<Floats>(bias + i), activation));
  }
}

} // namespace

extern const SparseKernels sparse;
const SparseKernels sparse = {panel_words, pool_tokens, activate};

} // namespace tessl::cpu::TESSL_CPU_ISA
