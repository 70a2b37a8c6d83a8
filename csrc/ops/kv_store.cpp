#include "ops/kv_store.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

#include <mlx/ops.h>

#include "backends/cpu/kv_store.h"
#include "ops/checks.h"
#include "ops/kv_store_plan.h"
#include "ops/row_op.h"

namespace tessl {
namespace {

// Inputs: cache, x, and positions int32 as a column that broadcasts to x.
mx::array compose(const mx::array& cache, const mx::array& x, const mx::array& positions, mx::Stream s) {
  const auto steps = mx::expand_dims(mx::arange(x.shape(-2), mx::int32, s), 1, s);
  const mx::array end(std::max(cache.shape(-2), 1), mx::int32);
  const auto rows = mx::remainder(mx::add(mx::remainder(positions, end, s), steps, s), end, s);
  return mx::put_along_axis(cache, mx::broadcast_to(rows, x.shape(), s), x, -2, s);
}

class KvStore : public RowOp {
 public:
  using RowOp::RowOp;

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

  const char* name() const override {
    return "mlx_tessl.kv_store";
  }

 protected:
  // Where nothing else holds the cache, its memory becomes the output's.
  void allocate(const Arrays& inputs, Arrays& outputs) const override {
    const auto& cache = inputs[0];
    if (cache.is_donatable() && cache.flags().row_contiguous && cache.data_size() == cache.size()) {
      outputs[0].copy_shared_buffer(cache);
    } else {
      Op::allocate(inputs, outputs);
    }
  }

  Plan plan(const Arrays& inputs, const Arrays& outputs, const DeviceProfile&) const override {
    return plan_kv_store(
        inputs[0].itemsize(),
        Operand::of(inputs[0]),
        Operand::of(inputs[1]),
        Operand::of(inputs[2]),
        is_in_place(inputs, outputs)
    );
  }

  std::function<void()> compute(const Arrays& inputs, Arrays& outputs) const override {
    const auto& [cache, x, positions] = std::tie(inputs[0], inputs[1], inputs[2]);
    const std::array operands{Operand::of(x), Operand::of(positions)};
    const auto [rows, sources] = rows_of(x.shape(), operands);
    const auto whole = Operand::of(cache);
    const auto [cache_rows, cache_sources] = rows_of(cache.shape(), {&whole, 1});
    const bool in_place = is_in_place(inputs, outputs);
    const cpu::KvStore work{
        .itemsize = static_cast<int64_t>(cache.itemsize()),
        .cache_rows = cache_rows,
        .cache = {in_place ? nullptr : cache.data<char>(), cache_sources[0]},
        .rows = rows,
        .x = {x.data<char>(), sources[0]},
        .positions_data = positions.data<int32_t>(),
        .positions = sources[1],
        .T = x.shape(-2),
        .S = cache.shape(-2),
        .out = outputs[0].data<char>(),
    };
    return [work] { cpu::kv_store(work); };
  }

  bool same_parameters(const Op&) const override {
    return true;
  }

  Meaning meaning() override {
    return [s = stream()](const Arrays& inputs) { return Arrays{compose(inputs[0], inputs[1], inputs[2], s)}; };
  }

  size_t row_inputs() const override {
    return 0;
  }

  Arrays apply(const Arrays& inputs) override {
    return make_outputs(std::make_shared<KvStore>(stream()), inputs[0].dtype(), inputs);
  }

 private:
  static bool is_in_place(const Arrays& inputs, const Arrays& outputs) {
    return outputs[0].data<char>() == inputs[0].data<char>();
  }
};

// Positions as int32. Those of a wider dtype are counted around the end of the cache first.
mx::array wrapped(const mx::array& position, const mx::array& cache, mx::Stream s) {
  const auto dtype = position.dtype();
  if (dtype.size() < 4 || dtype == mx::int32) {
    return mx::astype(position, mx::int32, s);
  }
  const auto rows = mx::maximum(mx::number_of_elements(cache, {-2}, false, dtype, s), mx::array(1, dtype), s);
  return mx::astype(mx::remainder(position, rows, s), mx::int32, s);
}

} // namespace

mx::array kv_store(const mx::array& cache, const mx::array& x, const mx::array& position, mx::StreamOrDevice stream) {
  constexpr std::string_view op = "mlx_tessl.kv_store";
  check_rows(op, "cache", cache);
  if (cache.ndim() < 2 || x.ndim() != cache.ndim()) {
    refuse(op, "cache has shape ", cache.shape(), " and new ", x.shape(), "; they must be [..., S, D] and [..., T, D]");
  }
  for (int axis = 0; axis < static_cast<int>(cache.ndim()); ++axis) {
    const bool is_rows = axis == static_cast<int>(cache.ndim()) - 2;
    if (is_rows ? x.shape(axis) > cache.shape(axis) : x.shape(axis) != cache.shape(axis)) {
      refuse(
          op, "new has shape ", x.shape(), "; it must be that of the cache, ", cache.shape(), ", with S rows at most"
      );
    }
  }
  check_integers(op, "position", position);
  const bool one_each = position.ndim() == 1 && cache.ndim() > 2 && position.shape(0) == cache.shape(0);
  if (position.ndim() != 0 && !one_each) {
    refuse(op, "position has shape ", position.shape(), "; it must be one integer, or one for each of the first axis");
  }
  const auto s = mx::to_stream(stream);
  mx::Shape column(cache.ndim(), 1);
  column[0] = one_each ? cache.shape(0) : 1;
  const auto positions = mx::reshape(wrapped(position, cache, s), column, s);
  const Arrays inputs{cache, mx::astype(x, cache.dtype(), s), positions};
  return make_outputs(std::make_shared<KvStore>(s), cache.dtype(), inputs)[0];
}

} // namespace tessl
