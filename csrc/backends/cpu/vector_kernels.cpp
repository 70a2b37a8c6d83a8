// Compiled once for each instruction set: see vectors.h.

#include "backends/cpu/vector_kernels.h"

#include "backends/cpu/vector_math.h"

namespace tessl::cpu::TESSL_CPU_ISA {
namespace {

// Elements that pass through all steps of a kernel while they are in L1.
constexpr int64_t chunk = 512;
static_assert(chunk % lanes == 0);

TESSL_INLINE int64_t least(int64_t x, int64_t y) {
  return x < y ? x : y;
}

template <typename T>
TESSL_INLINE const T* at(const void* data, int64_t index) {
  return static_cast<const T*>(data) + index;
}

template <typename T>
void load_contiguous(float* target, const T* source, int64_t count) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(target + i, load(source + i));
  }
  if (i < count) {
    const Floats rest = load_first(source + i, count - i);
    std::memcpy(target + i, &rest, static_cast<size_t>(count - i) * sizeof(float));
  }
}

template <typename T>
void load_strided(float* target, const T* source, int64_t stride, int64_t count) {
  T gathered[chunk];
  for (int64_t start = 0; start < count; start += chunk) {
    const int64_t n = least(chunk, count - start);
    for (int64_t i = 0; i < n; ++i) {
      gathered[i] = source[(start + i) * stride];
    }
    load_contiguous(target + start, gathered, n);
  }
}

template <typename T>
void load_elements(float* target, const T* source, int64_t stride, int64_t count) {
  if (stride == 1) {
    load_contiguous(target, source, count);
  } else {
    load_strided(target, source, stride, count);
  }
}

void load_any(Element element, float* target, const void* source, int64_t stride, int64_t count) {
  with_type(element, [&](auto type) { load_elements(target, at<decltype(type)>(source, 0), stride, count); });
}

// The first `count` lanes of x, rounded.
template <typename T>
TESSL_INLINE void store_first(T* target, Floats x, int64_t count) {
  T rest[lanes];
  store(rest, x);
  std::memcpy(target, rest, static_cast<size_t>(count) * sizeof(T));
}

// Contiguous elements, or null.
template <typename T>
struct Addends {
  const T* c = nullptr;
  const T* bias = nullptr;
  const T* residual = nullptr;
};

template <typename T, typename Activate>
void finish_contiguous(
    T* out, const float* sums, float alpha, float beta, const Addends<T>& addends, int64_t count, Activate activate
) {
  const auto [c, bias, residual] = addends;
  const auto finished = [&](auto at) __attribute__((always_inline)) {
    Floats x = alpha * at(sums);
    x = c != nullptr ? x + beta * at(c) : x;
    x = bias != nullptr ? x + at(bias) : x;
    x = activate(x);
    return residual != nullptr ? x + at(residual) : x;
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(out + i, finished([i](const auto* row) __attribute__((always_inline)) { return load(row + i); }));
  }
  if (i < count) {
    const int64_t rest = count - i;
    const auto first = [i, rest](const auto* row) __attribute__((always_inline)) { return load_first(row + i, rest); };
    store_first(out + i, finished(first), rest);
  }
}

// `count` elements of a row from `start` on, in `gathered` where they are not contiguous.
template <typename T>
const T* contiguous(const RowView& row, int64_t start, int64_t count, T* gathered) {
  const T* source = at<T>(row.data, start * row.stride);
  if (row.data == nullptr || row.stride == 1) {
    return row.data == nullptr ? nullptr : source;
  }
  for (int64_t i = 0; i < count; ++i) {
    gathered[i] = source[i * row.stride];
  }
  return gathered;
}

template <typename T>
void finish_row(T* out, const float* sums, const EpilogueRow& row, int64_t count) {
  T gathered[3][chunk];
  for (int64_t start = 0; start < count; start += chunk) {
    const int64_t n = least(chunk, count - start);
    const Addends<T> addends{
        contiguous(row.c, start, n, gathered[0]),
        contiguous(row.bias, start, n, gathered[1]),
        contiguous(row.residual, start, n, gathered[2]),
    };
    const auto finish = [&](auto activate) {
      finish_contiguous(out + start, sums + start, row.alpha, row.beta, addends, n, activate);
    };
    switch (row.activation) {
      case MATMUL_ACTIVATION_NONE:
        finish([](Floats x) { return x; });
        break;
      case MATMUL_ACTIVATION_RELU:
        finish([](Floats x) { return relu(x); });
        break;
      case MATMUL_ACTIVATION_SILU:
        finish([](Floats x) { return silu(x); });
        break;
      case MATMUL_ACTIVATION_GELU:
        finish([](Floats x) { return gelu(x); });
        break;
      case MATMUL_ACTIVATION_GELU_TANH:
        finish([](Floats x) { return gelu_tanh(x); });
        break;
    }
  }
}

void finish(Element element, void* out, const float* sums, const EpilogueRow& row, int64_t count) {
  with_type(element, [&](auto type) { finish_row(static_cast<decltype(type)*>(out), sums, row, count); });
}

// How far ahead of its use a row of b is fetched: in the rows of the next block, unless rows are so long that these
// would push others out of the cache. Those of float32 go to L2, where more find room at once: a token written by 37
// million weights takes 6 % less time.
template <typename T>
constexpr int64_t longest_fetched_row = sizeof(T) == sizeof(float) ? 8192 : 2048;
template <typename T>
constexpr int64_t fetched_ahead = sizeof(T) == sizeof(float) ? 8192 : 512;

template <typename T>
TESSL_INLINE void fetch(const T* element) {
  __builtin_prefetch(element, 0, sizeof(T) == sizeof(float) ? 2 : 3);
}

// Rows x Columns dot products of length K, the accumulators in registers. b comes from memory: a core waits for it less
// when it asks for the next block's rows meanwhile (25 and not 21 GB/s by two cores).
template <int Rows, int Columns, typename T>
void dot_block(float* sums, int64_t ld_sums, const float* a, int64_t lda, const T* b, int64_t ldb, int64_t K) {
  Floats accumulators[Rows][Columns] = {};
  const bool by_blocks = K <= longest_fetched_row<T> && Columns * ldb > fetched_ahead<T>;
  const int64_t ahead = by_blocks ? Columns * ldb : fetched_ahead<T>;
  int64_t k = 0;
  const auto step = [&](auto load_a, auto load_b) __attribute__((always_inline)) {
    Floats a_values[Rows];
    for (int m = 0; m < Rows; ++m) {
      a_values[m] = load_a(a + m * lda);
    }
    for (int n = 0; n < Columns; ++n) {
      fetch(b + n * ldb + k + ahead);
      const Floats b_value = load_b(b + n * ldb);
      for (int m = 0; m < Rows; ++m) {
        accumulators[m][n] += a_values[m] * b_value;
      }
    }
  };
  for (; k + lanes <= K; k += lanes) {
    const auto whole = [k](auto* row) __attribute__((always_inline)) { return load(row + k); };
    step(whole, whole);
  }
  if (k < K) {
    const auto rest = [k, K](auto* row) __attribute__((always_inline)) { return load_first(row + k, K - k); };
    step(rest, rest);
  }
  for (int m = 0; m < Rows; ++m) {
    for (int n = 0; n < Columns; ++n) {
      sums[m * ld_sums + n] = sum_lanes(accumulators[m][n]);
    }
  }
}

// Four columns of `b` for one or two rows of `a`, two for more: as many accumulators as 16 registers allow.
template <int Rows, typename T>
void dot_rows(
    float* sums, int64_t ld_sums, const float* a, int64_t lda, const T* b, int64_t ldb, int64_t N, int64_t K
) {
  constexpr int columns = Rows <= 2 ? 4 : 2;
  int64_t n = 0;
  for (; n + columns <= N; n += columns) {
    dot_block<Rows, columns>(sums + n, ld_sums, a, lda, b + n * ldb, ldb, K);
  }
  for (; n < N; ++n) {
    dot_block<Rows, 1>(sums + n, ld_sums, a, lda, b + n * ldb, ldb, K);
  }
}

// Adds `Depth` rows of `b`, each weighted by an element of every row of `a`, to `count` sums.
template <int Rows, int Depth, typename T>
TESSL_INLINE void combine_step(
    float* sums, int64_t ld_sums, const float* a, int64_t lda, const T* b, int64_t ldb, int64_t count
) {
  int64_t i = 0;
  const auto step = [&](auto load_b) __attribute__((always_inline)) {
    Floats b_values[Depth];
    for (int k = 0; k < Depth; ++k) {
      b_values[k] = load_b(b + k * ldb + i);
    }
    for (int m = 0; m < Rows; ++m) {
      Floats sum = read<Floats>(sums + m * ld_sums + i);
      for (int k = 0; k < Depth; ++k) {
        sum += a[m * lda + k] * b_values[k];
      }
      store(sums + m * ld_sums + i, sum);
    }
  };
  for (; i + lanes <= count; i += lanes) {
    step([](const T* row) __attribute__((always_inline)) { return load(row); });
  }
  if (i < count) {
    step([&](const T* row) __attribute__((always_inline)) { return load_first(row, count - i); });
  }
}

template <int Rows, typename T>
void combine_rows(
    float* sums, int64_t ld_sums, const float* a, int64_t lda, const T* b, int64_t ldb, int64_t N, int64_t K
) {
  // Sums that stay in L1 (8 KiB) while long stretches of rows of b pass by.
  constexpr int64_t width = Rows == 1 ? 2048 : Rows == 2 ? 1024 : 512;
  constexpr int depth = Rows <= 2 ? 8 : 4;
  for (int64_t start = 0; start < N; start += width) {
    const int64_t count = least(width, N - start);
    float partial[Rows * width] = {};
    int64_t k = 0;
    for (; k + depth <= K; k += depth) {
      combine_step<Rows, depth>(partial, width, a + k, lda, b + k * ldb + start, ldb, count);
    }
    for (; k < K; ++k) {
      combine_step<Rows, 1>(partial, width, a + k, lda, b + k * ldb + start, ldb, count);
    }
    for (int m = 0; m < Rows; ++m) {
      std::memcpy(sums + m * ld_sums + start, partial + m * width, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

// Calls f.operator()<M>().
template <typename Function>
TESSL_INLINE void with_rows(int64_t M, Function f) {
  static_assert(max_thin_rows == 4);
  switch (M) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    case 4:
      return f.template operator()<4>();
    default:
      __builtin_unreachable();
  }
}

void dot_any(
    Element element,
    float* sums,
    int64_t ld_sums,
    const float* a,
    int64_t lda,
    const void* b,
    int64_t ldb,
    int64_t M,
    int64_t N,
    int64_t K
) {
  with_type(element, [&](auto type) {
    with_rows(M, [&]<int Rows>() { dot_rows<Rows>(sums, ld_sums, a, lda, at<decltype(type)>(b, 0), ldb, N, K); });
  });
}

void combine_any(
    Element element,
    float* sums,
    int64_t ld_sums,
    const float* a,
    int64_t lda,
    const void* b,
    int64_t ldb,
    int64_t M,
    int64_t N,
    int64_t K
) {
  with_type(element, [&](auto type) {
    with_rows(M, [&]<int Rows>() { combine_rows<Rows>(sums, ld_sums, a, lda, at<decltype(type)>(b, 0), ldb, N, K); });
  });
}

TESSL_INLINE Floats larger(Floats x, Floats y) {
  return x < y ? y : x;
}

TESSL_INLINE float max_lane(Floats x) {
  float most = x[0];
  for (int i = 1; i < lanes; ++i) {
    most = most < x[i] ? x[i] : most;
  }
  return most;
}

// Lanes from `count` on become the lowest float, which no maximum is and whose exponential is 0.
TESSL_INLINE Floats lowest_from(Floats x, int64_t count) {
  for (int64_t i = count; i < lanes; ++i) {
    x[i] = -0x1.fffffep127f;
  }
  return x;
}

float exponentials(float* row, float scale, int64_t count) {
  const int64_t whole = count / lanes * lanes;
  const int64_t rest = count - whole;
  Floats most = splat(-0x1.fffffep127f);
  for (int64_t i = 0; i < whole; i += lanes) {
    most = larger(most, scale * load(row + i));
  }
  const Floats last = rest > 0 ? lowest_from(scale * load_first(row + whole, rest), rest) : most;
  const float max = max_lane(larger(most, last));
  Floats sum{};
  for (int64_t i = 0; i < whole; i += lanes) {
    const Floats e = exp_of_negative(scale * load(row + i) - max);
    store(row + i, e);
    sum += e;
  }
  if (rest > 0) {
    const Floats e = exp_of_negative(last - max);
    std::memcpy(row + whole, &e, static_cast<size_t>(rest) * sizeof(float));
    sum += e;
  }
  return sum_lanes(sum);
}

} // namespace

#define TESSL_STRING(name) #name
#define TESSL_NAME(name) TESSL_STRING(name)

extern const RowKernels row_kernels;
extern const VectorKernels kernels;
const VectorKernels kernels = {
    TESSL_NAME(TESSL_CPU_ISA), load_any, finish, dot_any, combine_any, exponentials, &row_kernels
};

} // namespace tessl::cpu::TESSL_CPU_ISA
