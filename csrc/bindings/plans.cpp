#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <stdexcept>

#include "bindings/bindings.h"
#include "bindings/plan_values.h"
#include "kernels/common/grid_walk.h"
#include "launch/device_profile.h"
#include "launch/gemm_tiles.h"
#include "launch/operand.h"
#include "launch/pipeline_name.h"
#include "launch/plan.h"
#include "ops/activation.h"
#include "ops/matmul_plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {
namespace {

const char* to_string(Argument::Role role) {
  switch (role) {
    case Argument::Role::unused:
      return "unused";
    case Argument::Role::input:
      return "input";
    case Argument::Role::output:
      return "output";
    case Argument::Role::scratch_in:
      return "scratch_in";
    case Argument::Role::scratch_out:
      return "scratch_out";
    case Argument::Role::bytes:
      return "bytes";
  }
  return "unknown";
}

mx::Strides row_contiguous(const mx::Shape& shape) {
  mx::Strides strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Operand make_operand(
    const std::vector<int>& shape, const std::optional<std::vector<int64_t>>& strides, int64_t offset
) {
  Operand operand{mx::Shape(shape.begin(), shape.end()), {}, offset};
  if (!strides) {
    operand.strides = row_contiguous(operand.shape);
  } else if (strides->size() == shape.size()) {
    operand.strides = mx::Strides(strides->begin(), strides->end());
  } else {
    throw std::invalid_argument("[mlx_tessl.plan] an operand needs one stride for each dimension");
  }
  return operand;
}

struct MatmulCall {
  mx::Dtype dtype;
  Operand a, b;
  std::optional<Operand> c, bias, residual;
  MatmulEpilogue epilogue;
  bool relaxed, batch_invariant;
  DeviceProfile device;

  MatmulProblem problem() const {
    return make_matmul_problem(dtype, a, b, c, bias, residual, epilogue, relaxed, batch_invariant);
  }
  Plan plan() const {
    return plan_matmul(problem(), device);
  }
  std::optional<std::string> obstacle() const {
    const char* reason = tensorops_obstacle(problem(), device);
    return reason ? std::optional<std::string>(reason) : std::nullopt;
  }
};

// Seconds that planning one such call takes, by the mean over `repeats`.
double seconds_to_plan(const MatmulCall& call, int repeats) {
  uint64_t threadgroups = 0; // read below, so that no plan can be optimised away
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) {
    threadgroups += call.plan().launches.back().grid.x;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return threadgroups == 0 ? 0.0 : elapsed.count() / repeats;
}

} // namespace

void bind_plans(nb::module_& m) {
  auto plan = m.def_submodule("plan", "Plans as values, for tests and diagnostics.");

  nb::class_<Operand>(plan, "Operand", "Shape and strides of an array that need not exist.")
      .def(
          "__init__",
          [](Operand* self,
             const std::vector<int>& shape,
             const std::optional<std::vector<int64_t>>& strides,
             int64_t offset) { new (self) Operand(make_operand(shape, strides, offset)); },
          "shape"_a,
          "strides"_a.none() = nb::none(),
          "offset"_a = 0
      );

  nb::class_<Argument>(plan, "Argument", "What one [[buffer(i)]] is bound to.")
      .def_prop_ro("role", [](const Argument& a) { return to_string(a.role); })
      .def_ro("index", &Argument::index)
      .def_ro("size", &Argument::size)
      .def_ro("offset", &Argument::offset);

  nb::class_<Launch>(plan, "Launch", "One dispatch.")
      .def_prop_ro("kernel", [](const Launch& l) { return l.kernel->name; })
      .def_prop_ro("family", [](const Launch& l) { return l.kernel->family; })
      .def_prop_ro("capability", [](const Launch& l) { return to_string(l.kernel->capability); })
      .def_prop_ro("constants", [](const Launch& l) { return constants_dict(l.constants); })
      .def_prop_ro("pipeline_name", [](const Launch& l) { return pipeline_name(*l.kernel, l.constants); })
      .def_prop_ro(
          "arguments", [](const Launch& l) { return std::vector<Argument>(l.arguments.begin(), l.arguments.end()); }
      )
      .def(
          "bytes_of",
          [](const Launch& l, const Argument& a) {
            const auto bytes = l.bytes_of(a);
            return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          "argument"_a
      )
      .def_ro("threadgroup_memory", &Launch::threadgroup_memory)
      .def_prop_ro("grid", [](const Launch& l) { return size_tuple(l.grid); })
      .def_prop_ro("group", [](const Launch& l) { return size_tuple(l.group); });

  nb::class_<Plan>(plan, "Plan", "Scratch buffers (bytes) and launches in order.")
      .def_prop_ro(
          "scratch",
          [](const Plan& p) {
            std::vector<size_t> sizes;
            for (const auto& scratch : p.scratch) {
              sizes.push_back(scratch.nbytes);
            }
            return sizes;
          }
      )
      .def_prop_ro("launches", [](const Plan& p) { return std::vector<Launch>(p.launches.begin(), p.launches.end()); });

  plan.def(
      "grid_tile",
      [](uint32_t x, uint32_t y, int32_t tiles_m, int32_t tiles_n, int32_t width) {
        const auto tile = grid_tile(x, y, tiles_m, tiles_n, width);
        return std::tuple{tile.row, tile.column, tile.inside};
      },
      "x"_a,
      "y"_a,
      "tiles_m"_a,
      "tiles_n"_a,
      "width"_a,
      "Row and column of the tile that a threadgroup of a walk computes, and whether there is one."
  );
  plan.def(
      "walk_grid",
      [](int32_t tiles_m, int32_t tiles_n, int32_t width, int64_t batch) {
        return size_tuple(walk_grid(tiles_m, tiles_n, width, batch));
      },
      "tiles_m"_a,
      "tiles_n"_a,
      "width"_a,
      "batch"_a
  );

  nb::class_<MatmulCall>(plan, "Matmul", "A call of matmul on a device, as planning sees it.")
      .def(
          "__init__",
          [](MatmulCall* self,
             const std::string& dtype,
             const Operand& a,
             const Operand& b,
             const std::optional<Operand>& c,
             const std::optional<Operand>& bias,
             const std::optional<Operand>& residual,
             float alpha,
             float beta,
             const std::optional<std::string>& activation,
             bool relaxed,
             bool batch_invariant,
             const std::string& gpu,
             const std::string& macos) {
            const MatmulEpilogue epilogue{alpha, beta, parse_activation("mlx_tessl.plan", activation)};
            new (self) MatmulCall{
                parse_dtype(dtype),
                a,
                b,
                c,
                bias,
                residual,
                epilogue,
                relaxed,
                batch_invariant,
                make_device_profile(gpu, macos)
            };
          },
          "dtype"_a,
          "a"_a,
          "b"_a,
          nb::kw_only(),
          "c"_a.none() = nb::none(),
          "bias"_a.none() = nb::none(),
          "residual"_a.none() = nb::none(),
          "alpha"_a = 1.0f,
          "beta"_a = 0.0f,
          "activation"_a.none() = nb::none(),
          "relaxed"_a = false,
          "batch_invariant"_a = false,
          "gpu"_a,
          "macos"_a
      )
      .def("plan", &MatmulCall::plan)
      .def_prop_ro("tensorops_obstacle", &MatmulCall::obstacle)
      .def("seconds_to_plan", &seconds_to_plan, "repeats"_a);
}

} // namespace tessl
