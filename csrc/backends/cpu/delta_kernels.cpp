// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/delta_kernels.h"

#include "backends/cpu/vector_math.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

// Decays below this are taken as 0: what is left of them is nothing, and denormals are slow.
constexpr float least_decay = 1e-30f;

TESSL_INLINE Floats get(const float* source, int64_t count) {
  return count >= lanes ? load(source) : load_first(source, count);
}

TESSL_INLINE void put(float* target, Floats x, int64_t count) {
  if (count >= lanes) {
    store(target, x);
  } else {
    std::memcpy(target, &x, static_cast<size_t>(count) * sizeof(float));
  }
}

float dot(const float* a, const float* b, int64_t count) {
  Floats sum{};
  for (int64_t i = 0; i < count; i += lanes) {
    sum += get(a + i, count - i) * get(b + i, count - i);
  }
  return sum_lanes(sum);
}

// `Rows` rows of the state at once, so that k and q are loaded once for all of them. With S the state before the token:
//   u = beta (v - decay S k)    y = decay S q + u (k . q)    out = decay S + u k^T
template <int Rows>
TESSL_INLINE void step_rows(const DeltaStep& step, float k_dot_q, int64_t first, int64_t Dk) {
  const float* state = step.state + first * Dk;
  float* out = step.out + first * Dk;
  Floats along_k[Rows] = {};
  Floats along_q[Rows] = {};
  for (int64_t i = 0; i < Dk; i += lanes) {
    const Floats k = get(step.k + i, Dk - i);
    const Floats q = get(step.q + i, Dk - i);
    for (int r = 0; r < Rows; ++r) {
      const Floats s = get(state + r * Dk + i, Dk - i);
      along_k[r] += s * k;
      along_q[r] += s * q;
    }
  }
  float u[Rows];
  for (int r = 0; r < Rows; ++r) {
    u[r] = step.beta * (step.v[first + r] - step.decay * sum_lanes(along_k[r]));
    step.y[first + r] = step.decay * sum_lanes(along_q[r]) + u[r] * k_dot_q;
  }
  for (int64_t i = 0; i < Dk; i += lanes) {
    const Floats k = get(step.k + i, Dk - i);
    for (int r = 0; r < Rows; ++r) {
      const Floats s = get(state + r * Dk + i, Dk - i);
      put(out + r * Dk + i, step.decay * s + u[r] * k, Dk - i);
    }
  }
}

void delta_step(const DeltaStep& step, int64_t Dk, int64_t Dv) {
  const float k_dot_q = dot(step.k, step.q, Dk);
  int64_t row = 0;
  for (; row + 4 <= Dv; row += 4) {
    step_rows<4>(step, k_dot_q, row, Dk);
  }
  for (; row < Dv; ++row) {
    step_rows<1>(step, k_dot_q, row, Dk);
  }
}

void decays(float* decays, int64_t ld, const float* decay, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = decays + i * ld;
    for (int64_t j = 0; j < n; j += lanes) {
      Floats x = i == 0 ? Floats{} : get(row - ld + j, n - j) * decay[i];
      put(row + j, x < least_decay ? Floats{} : x, n - j);
    }
    row[i] = 1.0f;
  }
}

void multiply(float* out, float factor, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; i += lanes) {
    put(out + i, factor * get(a + i, count - i) * get(b + i, count - i), count - i);
  }
}

void subtract(float* out, float factor, const float* a, float b_factor, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; i += lanes) {
    put(out + i, factor * (get(a + i, count - i) - b_factor * get(b + i, count - i)), count - i);
  }
}

void accumulate(float* sums, float factor, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += lanes) {
    put(sums + i, get(sums + i, count - i) + factor * get(x + i, count - i), count - i);
  }
}

// x -= sum over `terms` of factors[j * stride] rows[j], where the rows are `columns` apart.
TESSL_INLINE void subtract_rows(
    float* x, const float* factors, int64_t stride, const float* rows, int64_t terms, int64_t columns
) {
  constexpr int vectors = 4;
  int64_t c = 0;
  for (; c + vectors * lanes <= columns; c += vectors * lanes) {
    Floats sums[vectors];
    for (int i = 0; i < vectors; ++i) {
      sums[i] = load(x + c + i * lanes);
    }
    for (int64_t j = 0; j < terms; ++j) {
      for (int i = 0; i < vectors; ++i) {
        sums[i] -= factors[j * stride] * load(rows + j * columns + c + i * lanes);
      }
    }
    for (int i = 0; i < vectors; ++i) {
      store(x + c + i * lanes, sums[i]);
    }
  }
  for (; c < columns; c += lanes) {
    Floats sum = get(x + c, columns - c);
    for (int64_t j = 0; j < terms; ++j) {
      sum -= factors[j * stride] * get(rows + j * columns + c, columns - c);
    }
    put(x + c, sum, columns - c);
  }
}

void solve(const float* A, int64_t lda, float* X, int64_t n, int64_t columns) {
  for (int64_t i = 1; i < n; ++i) {
    subtract_rows(X + i * columns, A + i * lda, 1, X, i, columns);
  }
}

void solve_transposed(const float* A, int64_t lda, float* X, int64_t n, int64_t columns) {
  for (int64_t i = n - 1; i-- > 0;) {
    const int64_t next = i + 1;
    subtract_rows(X + i * columns, A + next * lda + i, lda, X + next * columns, n - next, columns);
  }
}

void convolve(float* out, const float* const* rows, const float* weights, int64_t taps, int64_t count, bool with_silu) {
  for (int64_t c = 0; c < count; c += lanes) {
    Floats sum{};
    for (int64_t j = 0; j < taps; ++j) {
      sum += get(weights + j * count + c, count - c) * get(rows[j] + c, count - c);
    }
    put(out + c, with_silu ? silu(sum) : sum, count - c);
  }
}

} // namespace

extern const DeltaKernels delta;
const DeltaKernels delta = {delta_step, decays, multiply, subtract, solve, solve_transposed, dot, accumulate, convolve};

} // namespace tessl::cpu::TESSL_CPU_ISA
