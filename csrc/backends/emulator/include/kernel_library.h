#pragma once

// Everything that a rewritten kernel source is compiled against.

#include "runtime/machine.h"
#ifdef TESSL_CHECKED
#include "runtime/instrumentation.h"
#endif
#include "launch/entry.h"
#include "launch/threadgroup_memory.h"
#include "msl/atomic.h"
#include "msl/compiler_builtins.h"
#include "msl/integer.h"
#include "msl/log.h"
#include "msl/math.h"
#include "msl/simd.h"
#include "msl/simdgroup_matrix.h"
#include "msl/synchronize.h"
#include "tensor/matmul2d.h"
#include "tensor/reduce.h"
