#pragma once

// Included by the host (C++20) and by the shaders.

#define COPY_MAX_DIMS 10

// A strided view of `ndim` dimensions, 2 at least, to be written row-contiguously.
struct CopyArgs {
  int32_t ndim;
  int32_t shape[COPY_MAX_DIMS];
  int32_t reserved;
  int64_t strides[COPY_MAX_DIMS]; // of the source, in elements
};

static_assert(sizeof(CopyArgs) == 128, "host and shader must agree on CopyArgs");
