// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/row_kernels.h"

#include "backends/cpu/vector_math.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

// Lanes of one step: all of them, or the `count` that are left of a row, zeros in the others.
struct Whole {
  TESSL_INLINE Floats get(const float* source) {
    return load(source);
  }
  template <typename T>
  TESSL_INLINE void put(T* target, Floats x) {
    store(target, x);
  }
  TESSL_INLINE Floats select(Floats x, Floats) {
    return x;
  }
};

struct Rest {
  int64_t count;

  [[gnu::always_inline]] Floats get(const float* source) const {
    return load_first(source, count);
  }
  template <typename T>
  [[gnu::always_inline]] void put(T* target, Floats x) const {
    T padded[lanes];
    store(padded, x);
    std::memcpy(target, padded, static_cast<size_t>(count) * sizeof(T));
  }
  // x in the lanes that are there, `other` in the rest.
  [[gnu::always_inline]] Floats select(Floats x, Floats other) const {
    for (int64_t i = count; i < lanes; ++i) {
      x[i] = other[i];
    }
    return x;
  }
};

// Calls f(i, step) for each step of a row.
template <typename Function>
TESSL_INLINE void over(int64_t count, Function f) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    f(i, Whole{});
  }
  if (i < count) {
    f(i, Rest{count - i});
  }
}

// The sum of f(i, step) over a row, in two accumulators: one is bound by the latency of an addition.
template <typename Function>
TESSL_INLINE float sum_over(int64_t count, Function f) {
  Floats even{};
  Floats odd{};
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    even += f(i, Whole{});
    odd += f(i + lanes, Whole{});
  }
  over(count - i, [&](int64_t j, auto step) __attribute__((always_inline)) { even += f(i + j, step); });
  return sum_lanes(even + odd);
}

// 1 / (1 + e^-x), or e^x / (1 + e^x).
TESSL_INLINE Floats sigmoid(Floats x) {
  const Floats e = exp_of_negative(-magnitude(x));
  return (x < 0.0f ? e : splat(1.0f)) / (1.0f + e);
}

void store_row(Element element, void* target, const float* source, int64_t count) {
  with_type(element, [&](auto type) {
    auto* typed = static_cast<decltype(type)*>(target);
    over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
      step.put(typed + i, step.get(source + i));
    });
  });
}

float sum(const float* x, int64_t count) {
  return sum_over(count, [&](int64_t i, auto step) __attribute__((always_inline)) { return step.get(x + i); });
}

float sum_of_squares(const float* x, int64_t count) {
  return sum_over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    const Floats v = step.get(x + i);
    return v * v;
  });
}

float sum_of_squares_around(const float* x, float mean, int64_t count) {
  return sum_over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    const Floats d = step.select(step.get(x + i) - mean, Floats{});
    return d * d;
  });
}

// sum[i] = x[i] + residual[i], and the sum of all.
float add_rows(float* sum, const float* x, const float* residual, int64_t count) {
  return sum_over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    const Floats v = step.get(x + i) + step.get(residual + i);
    step.put(sum + i, v);
    return v;
  });
}

template <bool HasWeight, bool HasBias, bool HasGate>
void scale_norm(const NormRow& row, const float* s, float mean, float r) {
  over(row.count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    Floats y = (step.get(s + i) - mean) * r;
    if constexpr (HasWeight) {
      y = y * (step.get(row.weight + i) + row.weight_offset);
    }
    if constexpr (HasBias) {
      y = y + step.get(row.bias + i);
    }
    if constexpr (HasGate) {
      y = y * silu(step.get(row.gate + i));
    }
    step.put(row.out + i, y);
  });
}

void norm(const NormRow& row) {
  const float* s = row.x;
  float total = 0.0f;
  if (row.residual != nullptr) {
    total = add_rows(row.sum, row.x, row.residual, row.count);
    s = row.sum;
  } else if (row.centered) {
    total = sum(s, row.count);
  }
  const auto n = static_cast<float>(row.count);
  const float mean = row.centered ? total / n : 0.0f;
  const float squares = row.centered ? sum_of_squares_around(s, mean, row.count) : sum_of_squares(s, row.count);
  const float r = 1.0f / __builtin_sqrtf(squares / n + row.eps);
  if (row.gate != nullptr) {
    return row.weight != nullptr ? scale_norm<true, false, true>(row, s, mean, r)
                                 : scale_norm<false, false, true>(row, s, mean, r);
  }
  if (row.bias != nullptr) {
    return row.weight != nullptr ? scale_norm<true, true, false>(row, s, mean, r)
                                 : scale_norm<false, true, false>(row, s, mean, r);
  }
  return row.weight != nullptr ? scale_norm<true, false, false>(row, s, mean, r)
                               : scale_norm<false, false, false>(row, s, mean, r);
}

void gate(GateFunction function, float* out, const float* gate, const float* x, int64_t count) {
  const auto apply = [&](auto f) __attribute__((always_inline)) {
    over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
      step.put(out + i, f(step.get(gate + i)) * step.get(x + i));
    });
  };
  switch (function) {
    case GATE_SIGMOID:
      return apply([](Floats z) __attribute__((always_inline)) { return sigmoid(z); });
    case GATE_SILU:
      return apply([](Floats z) __attribute__((always_inline)) { return silu(z); });
    case GATE_GELU:
      return apply([](Floats z) __attribute__((always_inline)) { return gelu(z); });
    case GATE_GELU_TANH:
      return apply([](Floats z) __attribute__((always_inline)) { return gelu_tanh(z); });
  }
}

void cos_sin(float* cosines, float* sines, float position, const float* inv_freq, int64_t count) {
  over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    const Turn turn = cosine_and_sine(position * step.get(inv_freq + i));
    step.put(cosines + i, turn.cosine);
    step.put(sines + i, turn.sine);
  });
}

void rotate(float* out, const float* x, const float* cosines, const float* sines, int64_t half, bool interleaved) {
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float first = x[2 * i];
      const float second = x[2 * i + 1];
      out[2 * i] = first * cosines[i] - second * sines[i];
      out[2 * i + 1] = second * cosines[i] + first * sines[i];
    }
    return;
  }
  over(half, [&](int64_t i, auto step) __attribute__((always_inline)) {
    const Floats first = step.get(x + i);
    const Floats second = step.get(x + half + i);
    const Floats c = step.get(cosines + i);
    const Floats s = step.get(sines + i);
    step.put(out + i, first * c - second * s);
    step.put(out + half + i, second * c + first * s);
  });
}

float max(const float* x, int64_t count) {
  const float infinity = __builtin_inff();
  Floats most = splat(-infinity);
  Floats nan{}; // the last one met: a comparison passes it over
  over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    const Floats v = step.select(step.get(x + i), splat(-infinity));
    most = most < v ? v : most;
    nan = v == v ? nan : v;
  });
  float result = -infinity;
  for (int i = 0; i < lanes; ++i) {
    if (nan[i] != nan[i]) {
      return nan[i];
    }
    result = result < most[i] ? most[i] : result;
  }
  return result;
}

float exponentials(float* out, const float* x, float most, int64_t count) {
  return sum_over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    const Floats v = step.get(x + i);
    const Floats e = exp_of_negative(v == most ? Floats{} : v - most);
    if (out != nullptr) {
      step.put(out + i, e);
    }
    return step.select(e, Floats{});
  });
}

void scale(float* out, float factor, const float* x, int64_t count) {
  over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    step.put(out + i, factor * step.get(x + i));
  });
}

void add(float* sums, const float* x, int64_t count) {
  over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    step.put(sums + i, step.get(sums + i) + step.get(x + i));
  });
}

float mass_from(const float* x, const float* weights, float least, int64_t count) {
  return sum_over(count, [&](int64_t i, auto step) __attribute__((always_inline)) {
    return step.get(x + i) >= least ? step.get(weights + i) : Floats{};
  });
}

int64_t count_from(const float* x, float least, int64_t count) {
  int64_t result = 0;
  for (int64_t i = 0; i < count; ++i) {
    result += x[i] >= least;
  }
  return result;
}

} // namespace

extern const RowKernels row_kernels;
const RowKernels row_kernels = {
    store_row, norm, gate, cos_sin, rotate, sum, sum_of_squares, max, exponentials, scale, add, mass_from, count_from
};

} // namespace tessl::cpu::TESSL_CPU_ISA
