#include "backends/metal/pipeline.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "backends/metal/library.h"
#include "launch/decimal.h"
#include "launch/pipeline_name.h"

namespace mx = mlx::core;

namespace tessl::metal {
namespace {

using Constants = decltype(Launch::constants);

struct Key {
  const Kernel* kernel;
  Constants constants;

  bool operator==(const Key& other) const {
    return kernel == other.kernel && std::ranges::equal(constants, other.constants);
  }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = reinterpret_cast<uintptr_t>(key.kernel);
    for (const auto& constant : key.constants) {
      const uint64_t place = uint64_t{constant.index} << 40 | uint64_t{static_cast<uint8_t>(constant.type)} << 32;
      hash = (hash ^ place ^ constant.bits) * 0x9e3779b97f4a7c15u; // 2^64 over the golden ratio
      hash ^= hash >> 32;
    }
    return hash;
  }
};

struct Pipeline {
  MTL::ComputePipelineState* state;
  size_t max_threads; // register pressure lowers it below 1024
};

MTL::DataType data_type(FunctionConstant::Type type) {
  switch (type) {
    case FunctionConstant::Type::boolean:
      return MTL::DataTypeBool;
    case FunctionConstant::Type::int32:
      return MTL::DataTypeInt;
    case FunctionConstant::Type::float32:
      return MTL::DataTypeFloat;
  }
  throw std::runtime_error("[mlx_tessl] a function constant of unknown type");
}

Pipeline make_pipeline(const Key& key, mx::metal::Device& device) {
  mx::metal::MTLFCList constants;
  for (const auto& constant : key.constants) {
    // Little endian: the first byte of bits is the boolean.
    constants.emplace_back(&constant.bits, data_type(constant.type), constant.index);
  }
  auto* library = library_of(*key.kernel, device);
  auto* state = device.get_kernel(key.kernel->name, library, pipeline_name(*key.kernel, key.constants), constants);
  return {state, state->maxTotalThreadsPerThreadgroup()};
}

class PipelineCache {
 public:
  Pipeline get(const Key& key, mx::metal::Device& device) {
    {
      std::shared_lock lock(mutex_);
      if (const auto found = pipelines_.find(key); found != pipelines_.end()) {
        return found->second;
      }
    }
    // Compiled outside the lock: MLX's own keeps two threads from compiling the same pipeline.
    const auto pipeline = make_pipeline(key, device);
    std::unique_lock lock(mutex_);
    return pipelines_.emplace(key, pipeline).first->second;
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<Key, Pipeline, KeyHash> pipelines_;
};

} // namespace

MTL::ComputePipelineState* pipeline_of(const Launch& launch, mx::metal::Device& device) {
  static PipelineCache cache;
  const auto pipeline = cache.get({launch.kernel, launch.constants}, device);
  const auto threads = size_t{launch.group.x} * launch.group.y * launch.group.z;
  if (threads > pipeline.max_threads) {
    throw std::runtime_error(
        "[mlx_tessl] " + launch.kernel->name + " is planned with " + decimal(threads) +
        " threads per threadgroup; this device runs it with at most " + decimal(pipeline.max_threads)
    );
  }
  return pipeline.state;
}

} // namespace tessl::metal
