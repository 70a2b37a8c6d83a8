#include "ops/copy_plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

#include "kernels/args/copy.h"

namespace tessl {
namespace {

// A threadgroup copies 8 rows of 32 * 4 elements.
constexpr Size3 copy_group{32, 8, 1};
constexpr int32_t elements_a_thread = 4;

const Kernel* copy_kernel(size_t itemsize) {
  static const std::array kernels{
      intern_kernel("copy_strided_uint8", "copy", Capability::portable),
      intern_kernel("copy_strided_uint16", "copy", Capability::portable),
      intern_kernel("copy_strided_uint32", "copy", Capability::portable),
      intern_kernel("copy_strided_uint64", "copy", Capability::portable),
  };
  return kernels[std::countr_zero(itemsize)];
}

// The view without dimensions of one element, at least two-dimensional.
CopyArgs copy_args(std::span<const int32_t> shape, std::span<const int64_t> strides) {
  CopyArgs args{};
  const auto long_dims = static_cast<int32_t>(std::count_if(shape.begin(), shape.end(), [](auto n) { return n != 1; }));
  for (; args.ndim + long_dims < 2; ++args.ndim) {
    args.shape[args.ndim] = 1;
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1) {
      args.shape[args.ndim] = shape[d];
      args.strides[args.ndim++] = strides[d];
    }
  }
  return args;
}

bool starts_runs_of_four(const CopyArgs& args, int64_t source_offset, size_t itemsize) {
  const int64_t* outer_end = args.strides + args.ndim - 1;
  return *outer_end == 1 && source_offset % static_cast<int64_t>(4 * itemsize) == 0 &&
         std::all_of(args.strides, outer_end, [](int64_t stride) { return stride % 4 == 0; });
}

uint32_t groups(int64_t threads, uint32_t group) {
  return static_cast<uint32_t>((threads + group - 1) / group);
}

} // namespace

void add_copy(
    Plan& plan,
    size_t itemsize,
    const Argument& source,
    int64_t source_offset,
    const Argument& destination,
    std::span<const int32_t> shape,
    std::span<const int64_t> strides
) {
  const CopyArgs args = copy_args(shape, strides);
  int64_t outer = 1;
  for (int32_t d = 0; d < args.ndim - 2; ++d) {
    outer *= args.shape[d];
    if (outer > std::numeric_limits<int32_t>::max()) {
      throw std::invalid_argument("[mlx_tessl.copy] the outer dimensions have more than 2147483647 members");
    }
  }
  const int64_t rows = args.shape[args.ndim - 2];
  const int64_t columns = args.shape[args.ndim - 1];
  const bool vector_out = columns % elements_a_thread == 0;

  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = copy_kernel(itemsize);
  launch.constants.push_back(FunctionConstant::boolean(0, vector_out));
  launch.constants.push_back(
      FunctionConstant::boolean(1, vector_out && starts_runs_of_four(args, source_offset, itemsize))
  );
  launch.arguments.push_back(source);
  launch.arguments.push_back(destination);
  launch.push_bytes(args);
  launch.group = copy_group;
  launch.grid = {
      groups((columns + elements_a_thread - 1) / elements_a_thread, copy_group.x),
      groups(rows, copy_group.y),
      static_cast<uint32_t>(outer)
  };
}

} // namespace tessl
