#pragma once

// What the host runtime and a compiled kernel library know of each other. Included by both sides.

#ifdef TESSL_EMULATED
#include "integers.h"
#else
#include <cstddef>
#include <cstdint>
#endif

namespace emu {

constexpr uint32_t abi_version = 1;
constexpr uint32_t simd_width = 32;
constexpr uint32_t max_threads = 1024; // of a threadgroup
constexpr uint32_t max_simdgroups = max_threads / simd_width;
constexpr uint32_t max_buffers = 31;
constexpr uint32_t max_constants = 1024;

struct Index3 {
  uint32_t x, y, z;
};

// Computes one cooperative operation for every lane of `mask` at once. requests[lane] is what that lane passed;
// for an operation over several simdgroups, requests holds 32 entries for each of `simdgroups`, all of them present.
using Operation = void (*)(void* const* requests, uint32_t mask, uint32_t simdgroups);

struct Counters {
  uint64_t device_read_bytes;
  uint64_t device_written_bytes;
  uint64_t threadgroup_read_bytes;
  uint64_t threadgroup_written_bytes;
  uint64_t matrix_flops;         // simdgroup_matrix and matmul2d
  uint64_t scalar_flops;         // everything else
  uint64_t simd_operations;      // shuffles, reductions, votes, fragment products, of one simdgroup
  uint64_t divergent_operations; // those of them that some live lanes did not reach
  uint64_t simdgroup_barriers;
  uint64_t threadgroup_barriers;
  uint64_t matmul2d_runs;
  uint64_t threadgroups;
  uint64_t threads;
  uint64_t threadgroup_memory; // bytes, the most that one threadgroup had
};

enum BarrierFlags : uint32_t { barrier_none = 0, barrier_device = 1, barrier_threadgroup = 2 };

enum class Access : uint32_t { read, write, atomic_load, atomic_store, atomic_update };

// The part of the machine that kernels see. Everything about "the running thread" changes at each switch of fibers.
struct Machine {
  // The running thread.
  uint32_t lane;
  uint32_t simdgroup;
  Index3 thread_in_threadgroup;

  // The running threadgroup.
  Index3 threadgroup;
  Index3 threads_per_threadgroup; // fewer at the edge of a grid given in threads
  uint32_t simdgroups;

  // The launch.
  uint64_t launch; // distinct for each run of a kernel
  uint64_t seed;   // of layout permutations
  Index3 nominal_threads_per_threadgroup;
  Index3 threads_per_grid;
  Index3 threadgroups_per_grid;
  float ulp_noise;
  bool check;
  void* buffers[max_buffers];
  uint64_t buffer_bytes[max_buffers];
  void* threadgroup_arguments[max_buffers];
  char* threadgroup_memory;
  Counters counters;

  // Parks the lane until every live lane of its simdgroup that will come to `site` is there.
  void (*rendezvous)(void* request, Operation operation, const void* site);
  // The same over all threads of the threadgroup; `simdgroups` is how many the kernel says there are.
  void (*rendezvous_threadgroup)(void* request, Operation operation, const void* site, uint32_t simdgroups);
  void (*barrier)(uint32_t flags, const void* site);
  void (*simdgroup_barrier)(uint32_t flags, const void* site);
  // A place in threadgroup memory for one declaration, the same for all threadgroups of the launch.
  uint64_t (*declare_threadgroup_memory)(const char* name, uint64_t bytes, uint64_t alignment);
  void (*access)(const void* address, uint64_t bytes, Access access, const void* site);
  void* (*scratch)(uint64_t bytes); // working memory of an Operation, 64-byte aligned, valid until its end
  // Ends the launch with a finding; does not return.
  void (*fail)(const char* message);
};

enum class ArgumentKind : uint32_t {
  buffer,    // device or constant pointer
  reference, // device or constant reference: `bytes` is the size of what it refers to
  tensor,    // a host-made tensor
  threadgroup,
  value, // thread_position_in_grid and its like
};

struct ArgumentInfo {
  ArgumentKind kind;
  int32_t index;  // [[buffer(index)]], [[threadgroup(index)]], or a BuiltIn
  uint32_t bytes; // of the element or of the struct referred to
  uint32_t alignment;
  bool writable;
  bool (*gate)(); // whether the argument is there under the function constants in force; null if always
  const char* name;
};

enum class BuiltIn : int32_t {
  thread_position_in_grid,
  thread_position_in_threadgroup,
  threadgroup_position_in_grid,
  threads_per_grid,
  threadgroups_per_grid,
  threads_per_threadgroup,
  dispatch_threads_per_threadgroup,
  thread_index_in_simdgroup,
  simdgroup_index_in_threadgroup,
  thread_index_in_threadgroup,
  simdgroups_per_threadgroup,
  dispatch_simdgroups_per_threadgroup,
  threads_per_simdgroup,
  thread_execution_width,
  thread_index_in_quadgroup,
  quadgroup_index_in_threadgroup,
  quadgroups_per_threadgroup,
};

struct KernelInfo {
  const char* name;
  void (*entry)();
  const ArgumentInfo* arguments;
  uint32_t argument_count;
  uint32_t max_threads;     // [[max_total_threads_per_threadgroup]], 1024 if not given
  const int32_t* constants; // indices of the function constants that its code names
  uint32_t constant_count;
};

enum class ConstantType : uint32_t { boolean, int32, uint32, float32, int16, uint16, int8, uint8, int64, uint64, half };

struct ConstantInfo {
  const char* name;
  int32_t index;
  ConstantType type;
};

struct ConstantValue {
  bool defined;
  uint64_t bits; // of the type declared by the kernel library
};

// What a tensor argument's bytes hold; the elements are in another buffer of the launch.
struct TensorArgument {
  uint32_t buffer;
  uint32_t rank;
  uint64_t offset;    // bytes
  int64_t extents[4]; // fastest first
  int64_t strides[4]; // elements
};

struct LibraryInfo {
  uint32_t abi;
  bool checked; // memory accesses call Machine::access
  const KernelInfo* kernels;
  uint32_t kernel_count;
  const ConstantInfo* constants;
  uint32_t constant_count;
  Machine** machine;
  ConstantValue* constant_values; // by index
  uint64_t* scalar_flops;         // raised by checked code
};

} // namespace emu
