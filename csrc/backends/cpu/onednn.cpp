#include "backends/cpu/onednn.h"

#include <dlfcn.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cpu/library.h"
#include "launch/decimal.h"

namespace tessl::cpu {
namespace {

// From oneDNN's C interface: row-major matrices, a status of 0 for success.
using GemmInt8 =
    int(char transpose_a,
        char transpose_b,
        char kind_of_offset_c,
        int64_t M,
        int64_t N,
        int64_t K,
        float alpha,
        const int8_t* a,
        int64_t lda,
        int8_t offset_a,
        const int8_t* b,
        int64_t ldb,
        int8_t offset_b,
        float beta,
        int32_t* c,
        int64_t ldc,
        const int32_t* offset_c);

using GemmBFloat16 =
    int(char transpose_a,
        char transpose_b,
        int64_t M,
        int64_t N,
        int64_t K,
        float alpha,
        const uint16_t* a,
        int64_t lda,
        const uint16_t* b,
        int64_t ldb,
        float beta,
        float* c,
        int64_t ldc);

struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};

constexpr unsigned openmp = 2;

// Sets of instructions as bits, each with those it builds on.
constexpr int avx512_vnni = 0x67;
constexpr int avx512_bf16 = 0xe7;
constexpr int amx = 0xfef;

struct Onednn {
  GemmInt8* int8 = nullptr;
  GemmBFloat16* bfloat16 = nullptr;
  int (*get_max_threads)() = nullptr;
  void (*set_num_threads)(int) = nullptr;
  OnednnUse use_of_int8, use_of_bfloat16;
};

enum class Setting : uint8_t { off, automatic, all };

Setting parse_setting() {
  const char* text = std::getenv("MLX_TESSL_ONEDNN");
  const std::string_view value = text == nullptr ? "" : text;
  if (value.empty() || value == "auto") {
    return Setting::automatic;
  }
  if (value == "off") {
    return Setting::off;
  }
  if (value == "all") {
    return Setting::all;
  }
  throw std::invalid_argument(
      "[mlx_tessl] MLX_TESSL_ONEDNN is \"" + std::string(value) + "\"; expected off, auto or all."
  );
}

Setting setting() {
  static const Setting value = parse_setting();
  return value;
}

// A product is one of our threads' work: the library's OpenMP threads would only compete with them.
class OneThread {
 public:
  explicit OneThread(const Onednn& library) : library_(library), before_(library.get_max_threads()) {
    library_.set_num_threads(1);
  }
  ~OneThread() {
    library_.set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const Onednn& library_;
  const int before_;
};

template <typename T>
char letter(DenseMatrix<T> matrix) {
  return matrix.transposed ? 'T' : 'N';
}

bool multiply(
    const Onednn& library,
    int64_t M,
    int64_t N,
    int64_t K,
    DenseMatrix<int8_t> a,
    DenseMatrix<int8_t> b,
    int32_t* c,
    int64_t ldc
) {
  const OneThread one_thread(library);
  const int32_t offset = 0;
  return library.int8(
             letter(a),
             letter(b),
             'F',
             M,
             N,
             K,
             1.0f,
             a.data,
             a.leading_dimension,
             0,
             b.data,
             b.leading_dimension,
             0,
             0.0f,
             c,
             ldc,
             &offset
         ) == 0;
}

bool multiply(
    const Onednn& library,
    int64_t M,
    int64_t N,
    int64_t K,
    DenseMatrix<uint16_t> a,
    DenseMatrix<uint16_t> b,
    float* c,
    int64_t ldc
) {
  const OneThread one_thread(library);
  return library.bfloat16(
             letter(a), letter(b), M, N, K, 1.0f, a.data, a.leading_dimension, b.data, b.leading_dimension, 0.0f, c, ldc
         ) == 0;
}

// Small integers, whose sums are exact in every order; of int8 those whose products are the largest, too.
int code(int64_t i, int8_t /*type*/) {
  return i % 3 == 0 ? -128 : static_cast<int>(i * 37 % 256) - 128;
}

int code(int64_t i, uint16_t /*type*/) {
  return static_cast<int>(i * 37 % 17) - 8;
}

int8_t encode(int code, int8_t /*type*/) {
  return static_cast<int8_t>(code);
}

uint16_t encode(int code, uint16_t /*type*/) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(code)) >> 16);
}

template <typename T>
std::vector<T> codes(int64_t count, int64_t first) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = encode(code(first + i, T{}), T{});
  }
  return values;
}

// Where element (row, column) of a [rows, columns] matrix is, which is stored transposed or not.
struct Place {
  int64_t rows, columns;
  bool transposed;

  int64_t leading_dimension() const {
    return transposed ? rows : columns;
  }
  int64_t at(int64_t row, int64_t column) const {
    return transposed ? column * rows + row : row * columns + column;
  }
};

template <typename T, typename Sum>
bool computes(const Onednn& library, Place place_a, Place place_b) {
  const int64_t M = place_a.rows;
  const int64_t N = place_b.columns;
  const int64_t K = place_a.columns;
  const std::vector<T> a = codes<T>(M * K, 0);
  const std::vector<T> b = codes<T>(K * N, 1);
  std::vector<Sum> c(static_cast<size_t>(M * N), Sum{-1});
  const DenseMatrix<T> matrix_a{a.data(), place_a.leading_dimension(), place_a.transposed};
  const DenseMatrix<T> matrix_b{b.data(), place_b.leading_dimension(), place_b.transposed};
  if (!multiply(library, M, N, K, matrix_a, matrix_b, c.data(), N)) {
    return false;
  }
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      int sum = 0;
      for (int64_t k = 0; k < K; ++k) {
        sum += code(place_a.at(m, k), T{}) * code(1 + place_b.at(k, n), T{});
      }
      if (c[static_cast<size_t>(m * N + n)] != static_cast<Sum>(sum)) {
        return false;
      }
    }
  }
  return true;
}

// Ragged products, and those with one row or one column, which have kernels of their own. They also make the library
// compile its kernels.
template <typename T, typename Sum>
bool computes_small_products(const Onednn& library) {
  constexpr int64_t K = 67;
  for (const auto& [M, N] : {std::pair{37, 53}, std::pair{1, 53}, std::pair{37, 1}}) {
    for (const bool transposed_a : {false, true}) {
      for (const bool transposed_b : {false, true}) {
        if (!computes<T, Sum>(library, {M, K, transposed_a}, {K, N, transposed_b})) {
          return false;
        }
      }
    }
  }
  return true;
}

// Without the instructions for them, its products of int8 saturate between. With those of AVX-512 VNNI alone our
// kernels are as fast where a product is large, and faster where it has few rows.
OnednnUse use_of_int8(const Onednn& library, int instructions, const std::string& name) {
  const bool has_amx = (instructions & amx) == amx;
  if (!has_amx && setting() != Setting::all) {
    return {false, name + " is not faster for int8 on a CPU without AMX"};
  }
  if ((instructions & avx512_vnni) != avx512_vnni) {
    return {false, name + " needs AVX-512 VNNI for exact products of int8, which this CPU has not"};
  }
  if (!computes_small_products<int8_t, int32_t>(library)) {
    return {false, name + " computed a small product of int8 wrong"};
  }
  return {true, name + (has_amx ? " on AMX" : " with AVX-512 VNNI")};
}

// A dot product of AVX-512 BF16 takes a Sapphire Rapids core two cycles, in which it makes as many float32 products as
// that has: half of what our kernels do, which widen to float32, was measured.
OnednnUse use_of_bfloat16(const Onednn& library, int instructions, const std::string& name) {
  const bool has_amx = (instructions & amx) == amx;
  if (!has_amx && setting() != Setting::all) {
    return {false, name + " is not faster for bfloat16 on a CPU without AMX"};
  }
  if ((instructions & avx512_bf16) != avx512_bf16) {
    return {false, name + " needs AVX-512 BF16 or AMX, which this CPU has not"};
  }
  if (!computes_small_products<uint16_t, float>(library)) {
    return {false, name + " computed a small product of bfloat16 wrong"};
  }
  return {true, name + (has_amx ? " on AMX" : " with AVX-512 BF16")};
}

Onednn unused(const std::string& reason) {
  Onednn library;
  library.use_of_int8.reason = reason;
  library.use_of_bfloat16.reason = reason;
  return library;
}

// What MLX_TESSL_CPU_ISA asks our kernels to do without.
std::string lesser_instruction_set() {
  const char* wanted = std::getenv("MLX_TESSL_CPU_ISA");
  return wanted == nullptr || std::string_view(wanted) == "avx512" ? "" : wanted;
}

constinit std::atomic<const std::string*> library_path{nullptr};

template <typename Function>
void find_symbol(Function*& function, void* library, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

Onednn open_onednn() {
  const std::string* path = library_path.load(std::memory_order_acquire);
  if (setting() == Setting::off) {
    return unused("MLX_TESSL_ONEDNN is off");
  }
  if (const std::string lesser = lesser_instruction_set(); !lesser.empty()) {
    return unused("MLX_TESSL_CPU_ISA is " + lesser);
  }
  if (path == nullptr) {
    return unused("onednn-cpu-gomp is not installed");
  }
  void* handle = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return unused("oneDNN cannot be opened (" + std::string(dlerror()) + ")");
  }
  Onednn library;
  int (*instructions)() = nullptr;
  const Version* (*version)() = nullptr;
  find_symbol(library.int8, handle, "dnnl_gemm_s8s8s32");
  find_symbol(library.bfloat16, handle, "dnnl_gemm_bf16bf16f32");
  find_symbol(library.get_max_threads, handle, "omp_get_max_threads");
  find_symbol(library.set_num_threads, handle, "omp_set_num_threads");
  find_symbol(instructions, handle, "dnnl_get_effective_cpu_isa");
  find_symbol(version, handle, "dnnl_version");
  const bool complete = library.int8 != nullptr && library.bfloat16 != nullptr && library.get_max_threads != nullptr &&
                        library.set_num_threads != nullptr && instructions != nullptr && version != nullptr;
  if (!complete || version()->cpu_runtime != openmp) {
    return unused(*path + " is not a oneDNN that is built for OpenMP");
  }
  const std::string name = "oneDNN " + decimal(version()->major) + "." + decimal(version()->minor);
  library.use_of_int8 = use_of_int8(library, instructions(), name);
  library.use_of_bfloat16 = use_of_bfloat16(library, instructions(), name);
  wait_for_calls_at_exit();
  return library;
}

const Onednn& onednn() {
  static constinit std::atomic<const Onednn*> place{nullptr};
  return opened_once(place, open_onednn);
}

} // namespace

const OnednnUse& onednn_use(OnednnType type) {
  const Onednn& library = onednn();
  return type == OnednnType::int8 ? library.use_of_int8 : library.use_of_bfloat16;
}

bool onednn_product(
    int64_t M, int64_t N, int64_t K, DenseMatrix<int8_t> a, DenseMatrix<int8_t> b, int32_t* c, int64_t ldc
) {
  const LibraryCall call;
  return !call || multiply(onednn(), M, N, K, a, b, c, ldc);
}

bool onednn_product(
    int64_t M, int64_t N, int64_t K, DenseMatrix<uint16_t> a, DenseMatrix<uint16_t> b, float* c, int64_t ldc
) {
  const LibraryCall call;
  return !call || multiply(onednn(), M, N, K, a, b, c, ldc);
}

void set_onednn_library(std::string path) {
  library_path.store(new std::string(std::move(path)), std::memory_order_release);
}

void check_onednn_setting() {
  setting();
}

} // namespace tessl::cpu
