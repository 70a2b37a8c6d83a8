#include "backends/cpu/blas.h"

#include <atomic>
#include <stdexcept>
#include <utility>

#if !defined(__APPLE__)
#include <dlfcn.h>

#include "backends/cpu/library.h"
#endif

namespace tessl::cpu {
namespace {

// Constants of the CBLAS interface.
constexpr int row_major = 101;
constexpr int no_transpose = 111;
constexpr int transpose = 112;

using Sgemm = void(
    int order,
    int transpose_a,
    int transpose_b,
    int M,
    int N,
    int K,
    float alpha,
    const float* a,
    int lda,
    const float* b,
    int ldb,
    float beta,
    float* c,
    int ldc
);

struct Blas {
  Sgemm* sgemm = nullptr;
  std::string description;
};

#if defined(__APPLE__)

// The name behind ACCELERATE_NEW_LAPACK, since macOS 13.3; the plain one is deprecated.
extern "C" Sgemm cblas_sgemm asm("_cblas_sgemm$NEWLAPACK");

// Accelerate runs on the matrix units that a cluster of cores shares, and chooses its threads itself.
const Blas& blas() {
  static const Blas& accelerate = *new Blas{cblas_sgemm, "Accelerate"};
  return accelerate;
}

#else

constinit std::atomic<const std::string*> library_path{nullptr};

template <typename Function>
Function* find_symbol(void* library, const std::string& path, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw std::runtime_error(
        "[mlx_tessl] The BLAS library " + path + " has no function " + name +
        "; reinstall it with `pip install --force-reinstall scipy-openblas32`."
    );
  }
  return reinterpret_cast<Function*>(symbol);
}

// OpenBLAS sets itself up for the CPU it finds, or for the one that OPENBLAS_CORETYPE names. The panels of a product
// are our threads' work: its own threads would only compete with them.
Blas open_blas() {
  const std::string* set_path = library_path.load(std::memory_order_acquire);
  if (set_path == nullptr) {
    throw std::runtime_error("[mlx_tessl] There is no BLAS library; install it with `pip install scipy-openblas32`.");
  }
  const std::string& path = *set_path;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(
        "[mlx_tessl] The BLAS library cannot be opened (" + std::string(dlerror()) +
        "); install it with `pip install scipy-openblas32`."
    );
  }
  auto* sgemm = find_symbol<Sgemm>(library, path, "scipy_cblas_sgemm");
  find_symbol<void(int)>(library, path, "scipy_openblas_set_num_threads")(1);
  auto* config = find_symbol<const char*()>(library, path, "scipy_openblas_get_config");
  auto* core = find_symbol<const char*()>(library, path, "scipy_openblas_get_corename");
  wait_for_calls_at_exit();
  return {sgemm, std::string(config()) + ", kernels for " + core()};
}

const Blas& blas() {
  static constinit std::atomic<const Blas*> place{nullptr};
  return opened_once(place, open_blas);
}

#endif

} // namespace

void sgemm(
    int64_t M,
    int64_t N,
    int64_t K,
    BlasOperand a,
    BlasOperand b,
    float* c,
    int64_t leading_dimension_c,
    bool accumulate
) {
  const Blas& library = blas();
#if !defined(__APPLE__)
  const LibraryCall call;
  if (!call) {
    return;
  }
#endif
  library.sgemm(
      row_major,
      a.transposed ? transpose : no_transpose,
      b.transposed ? transpose : no_transpose,
      static_cast<int>(M),
      static_cast<int>(N),
      static_cast<int>(K),
      1.0f,
      a.data,
      static_cast<int>(a.leading_dimension),
      b.data,
      static_cast<int>(b.leading_dimension),
      accumulate ? 1.0f : 0.0f,
      c,
      static_cast<int>(leading_dimension_c)
  );
}

void set_blas_library(std::string path) {
#if !defined(__APPLE__)
  library_path.store(new std::string(std::move(path)), std::memory_order_release);
#else
  (void)path;
#endif
}

void open_blas_library() {
  blas();
}

std::string blas_description() {
  return blas().description;
}

} // namespace tessl::cpu
