#pragma once

// Included by the host (C++20) and by the shaders.

// The reach of a window that has no end on this side.
#define ATTENTION_UNLIMITED (1 << 30)

// Elements between neighbours in the batch, heads, rows and columns; 0 where an operand is broadcast.
struct AttentionStrides {
  int64_t batch;
  int64_t head;
  int64_t row;
  int64_t column;
};

// See csrc/ops/attention_problem.h for what is computed. Outputs are row-contiguous.
struct AttentionArgs {
  int32_t B;
  int32_t heads;
  int32_t kv_heads;
  int32_t Tq;
  int32_t Tk;
  int32_t P;
  int32_t D;
  int32_t Dv;
  int32_t reach_left; // keys before and after its position that a query sees, ATTENTION_UNLIMITED at most
  int32_t reach_right;
  int32_t column_parts; // of an output that is wider than a tile
  int32_t splits;       // of the keys, in the vector kernel
  int32_t split_keys;
  float scale;
  float score_scale; // of a dot product: scale log2(e), or scale / softcap
  float softcap;     // times log2(e)
  int64_t starts_stride;
  int64_t lengths_stride;
  int64_t sinks_stride;
  AttentionStrides q;
  AttentionStrides k;
  AttentionStrides v;
  AttentionStrides prefix_k; // batch 0
  AttentionStrides prefix_v;
  AttentionStrides mask;
};

// What the gradients need besides.
struct AttentionGradArgs {
  AttentionArgs forward;
  AttentionStrides out;
  AttentionStrides ends;
  AttentionStrides dout;
  int32_t mask_shape[4]; // of the mask as it was given
};

static_assert(sizeof(AttentionStrides) == 32, "host and shader must agree on AttentionStrides");
static_assert(sizeof(AttentionArgs) == 280, "host and shader must agree on AttentionArgs");
static_assert(sizeof(AttentionGradArgs) == 392, "host and shader must agree on AttentionGradArgs");
