#include "backends/cpu/ready.h"

#include "backends/cpu/blas.h"
#include "backends/cpu/onednn.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

namespace tessl::cpu {

void require_ready() {
  ThreadPool::instance();
  vector_kernels();
  check_onednn_setting();
  open_blas_library();
}

} // namespace tessl::cpu
