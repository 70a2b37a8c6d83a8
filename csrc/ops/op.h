#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <mlx/array.h>
#include <mlx/primitives.h>
#include <mlx/stream.h>

#include "launch/emulation.h"
#include "launch/plan.h"

namespace mx = mlx::core;

namespace tessl {

using Arrays = std::vector<mx::array>;

// A primitive of ours. On a Metal stream it encodes its plan; on a CPU stream it computes natively, or runs the
// same plan in the emulator when it was built inside mlx_tessl.emulate().
class Op : public mx::Primitive, public std::enable_shared_from_this<Op> {
 public:
  explicit Op(mx::Stream stream);

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) final;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) final;
  bool is_equivalent(const mx::Primitive& other) const final;

  // The transforms, deferred while shapes may change.
  Arrays vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs
  ) final;
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) final;
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) final;

 protected:
  // The transforms where shapes are known: as MLX's, of the parameters and the arrays given alone.
  virtual Arrays make_vjp(
      const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays& outputs
  );
  virtual Arrays make_jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums);
  virtual std::pair<Arrays, std::vector<int>> make_vmap(const Arrays& inputs, const std::vector<int>& axes);

  // Whether make_vjp reads the outputs, which are empty otherwise where it is deferred.
  virtual bool vjp_reads_outputs() const {
    return false;
  }

  // Gives every output memory: fresh, unless an op takes over that of an input. Fresh it always is in the emulator.
  virtual void allocate(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const;

  // The launches that fill `outputs`, which are allocated. Reads shapes, strides and offsets, never data.
  virtual Plan plan(
      const std::vector<mx::array>& inputs, const std::vector<mx::array>& outputs, const DeviceProfile& device
  ) const = 0;

  // The work that fills `outputs`, which are allocated, on the CPU. It runs later, on the stream's thread, when this
  // primitive may be gone: it captures data pointers and values.
  virtual std::function<void()> compute(
      const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs
  ) const = 0;

  // Whether `other`, of the same class, has the same parameters.
  virtual bool same_parameters(const Op& other) const = 0;

 private:
  // For what outlives a call. shared_from_this would need an exception of libc++'s that MLX's binaries do not vouch for
  // (tests/proof/macos_link.py).
  std::shared_ptr<Op> itself() {
    return weak_from_this().lock();
  }

  std::function<void()> emulate(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const;

  std::shared_ptr<const Emulation> emulation_;
};

// Refuses a result larger than the machine's memory: what the allocator cannot give would be written all the same.
void check_memory(std::string_view op, const mx::Shape& shape, mx::Dtype dtype);

} // namespace tessl
