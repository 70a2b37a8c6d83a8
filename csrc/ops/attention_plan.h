#pragma once

#include "launch/device_profile.h"
#include "launch/plan.h"
#include "ops/attention_problem.h"

namespace tessl {

// The kinds of forward kernels: few queries by vectors, or tiles of queries on simdgroup_matrix or the matrix units.
enum class AttentionKernelKind : uint8_t { vector, portable, tensorops };

struct AttentionKernelChoice {
  AttentionKernelKind kind;
  const char* reason;
};

AttentionKernelChoice choose_attention_kernel(const AttentionProblem& problem, const DeviceProfile& device);

// Writes output 0, and output 1 where the ends of the softmax are saved.
Plan plan_attention(const AttentionProblem& problem, const DeviceProfile& device);

// Writes each gradient that is wanted.
Plan plan_attention_grad(const AttentionGradProblem& problem, const DeviceProfile& device);

} // namespace tessl
