#include "ops/kv_store_plan.h"

#include <array>
#include <bit>

#include "kernels/args/kv_store.h"
#include "launch/rows.h"
#include "ops/copy_plan.h"

namespace tessl {
namespace {

const Kernel* store_kernel(size_t itemsize) {
  static const std::array kernels{
      intern_kernel("kv_store_uint8", "kv_store", Capability::portable),
      intern_kernel("kv_store_uint16", "kv_store", Capability::portable),
      intern_kernel("kv_store_uint32", "kv_store", Capability::portable),
      intern_kernel("kv_store_uint64", "kv_store", Capability::portable),
  };
  return kernels[std::countr_zero(itemsize)];
}

} // namespace

Plan plan_kv_store(size_t itemsize, const Operand& cache, const Operand& x, const Operand& positions, bool in_place) {
  const std::array operands{x, positions};
  const auto [rows, sources] = rows_of(x.shape, operands);
  Plan plan;
  if (!in_place) {
    add_copy(
        plan,
        itemsize,
        Argument::input(0),
        cache.offset,
        Argument::output(0),
        {cache.shape.begin(), cache.shape.size()},
        {cache.strides.begin(), cache.strides.size()}
    );
  }
  if (rows.count() == 0) {
    return plan;
  }
  const int64_t quads = (int64_t{rows.columns} + 3) / 4;
  plan.launches.push_back({});
  Launch& launch = plan.launches.back();
  launch.kernel = store_kernel(itemsize);
  launch.constants = {
      FunctionConstant::boolean(0, sources[0].in_runs_of_four(itemsize)),
      FunctionConstant::boolean(1, rows.columns % 4 == 0),
  };
  launch.arguments = {Argument::input(1), Argument::input(2), Argument::output(0)};
  const size_t ndim = x.shape.size();
  launch.push_bytes(
      KvStoreArgs{rows.args(), sources[0].args(), sources[1].args(), x.shape[ndim - 2], cache.shape[ndim - 2]}
  );
  launch.group = {32, 8, 1};
  launch.grid = {static_cast<uint32_t>((quads + 31) / 32), static_cast<uint32_t>((rows.count() + 7) / 8), 1};
  return plan;
}

} // namespace tessl
