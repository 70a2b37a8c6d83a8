#pragma once

#include <metal_stdlib>

#include "kernels/args/matmul.h"

// Split products: K is cut into partitions, each of which a threadgroup sums up as a product of its own. The partial
// sums are float32, [batch, partitions, M, N]; a second launch adds them in order.

inline int matmul_partitions(constant MatmulArgs& args) {
  return args.K == 0 ? 1 : (args.K - 1) / args.partition_k + 1;
}

// What z of the grid stands for: a member of the batch and k from `first` on.
struct MatmulPart {
  uint member;
  int first;
  int k;
};

inline MatmulPart matmul_part(uint z, constant MatmulArgs& args) {
  const uint partitions = uint(matmul_partitions(args));
  const int first = int(z % partitions) * args.partition_k;
  return {z / partitions, first, metal::min(args.K - first, args.partition_k)};
}
