#include "backends/cpu/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "backends/cpu/blas.h"
#include "backends/cpu/delta_kernels.h"
#include "backends/cpu/elements.h"
#include "backends/cpu/pieces.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "backends/cpu/vector_kernels.h"

// A task is one head of one row of the batch, which goes through its tokens in chunks of 64. Within a chunk, with
// L[i, j] the product of the decays of tokens j + 1 .. i, E[i] that of 0 .. i, D[i] = L[last, i], and S^T in memory:
//
//   A = strictly lower part of beta_i (k_i . k_j) L[i, j]     P = lower part of (q_i . k_j) L[i, j]
//   X = beta (V - E (K S))     (I + A) U = X     Y = E (Q S) + P U     S = E[last] S + K^T (D U)
//
// Decays are multiplied and not taken as differences of sums, in which a strong decay would swallow a weak one. A row
// of few tokens goes through the recurrence itself. Which way it goes depends on the row alone, and so do its bits.

namespace tessl::cpu {
namespace {

constexpr int64_t chunk_tokens = 64;
constexpr int64_t few_tokens = 4;
constexpr float norm_eps = 1e-6f;

thread_local Scratch chunk_scratch;
thread_local Scratch gradient_scratch;
thread_local Scratch states_scratch;

struct Head {
  int64_t batch;
  int64_t value_head;
  int64_t key_head;
};

const void* at(const TokensView& view, int64_t batch, int64_t token, int64_t head) {
  const auto& s = view.strides;
  return advance(view.data, view.element, batch * s[0] + token * s[1] + head * s[2]);
}

void load_row(float* target, const TokensView& view, int64_t batch, int64_t token, int64_t head, int64_t count) {
  vector_kernels().load(view.element, target, at(view, batch, token, head), view.strides[3], count);
}

float value(const TokensView& view, int64_t batch, int64_t token, int64_t head) {
  float x;
  load_row(&x, view, batch, token, head, 1);
  return x;
}

Range tokens_of(const TokenRange& range, int64_t batch, int64_t T) {
  const int64_t end = range.lengths ? std::clamp<int64_t>(range.lengths[batch * range.lengths_stride], 0, T) : T;
  const int64_t begin = range.starts ? std::clamp<int64_t>(range.starts[batch * range.starts_stride], 0, end) : 0;
  return {begin, end};
}

// log(1 + e^x), without overflow and with all its digits where it is small.
float softplus(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)));
}

// The decay e^g and the strength beta of a token.
struct Gate {
  float decay;
  float beta;
};

Gate gate_of(const GatedDelta& p, const Head& head, int64_t token) {
  const float g = value(p.g, head.batch, token, head.value_head);
  const float b = value(p.beta, head.batch, token, head.value_head);
  if (p.A_log == nullptr) {
    return {std::exp(g), b};
  }
  const float rate = std::exp(p.A_log[head.value_head * p.A_log_stride]);
  const float bias = p.dt_bias[head.value_head * p.dt_bias_stride];
  const float e = std::exp(-std::fabs(b));
  return {std::exp(-rate * softplus(g + bias)), (b < 0.0f ? e : 1.0f) / (1.0f + e)};
}

// One over the length of a row of q or k, as it is normalized; 1 where it is not.
float inverse_length(const GatedDelta& p, const float* row) {
  return p.normalize_qk ? 1.0f / std::sqrt(delta_kernels().dot(row, row, p.Dk) + norm_eps) : 1.0f;
}

float query_scale(const GatedDelta& p) {
  return p.normalize_qk ? 1.0f / std::sqrt(static_cast<float>(p.Dk)) : 1.0f;
}

void load_key(const GatedDelta& p, const Head& head, int64_t token, float* k) {
  load_row(k, p.k, head.batch, token, head.key_head, p.Dk);
  vector_kernels().rows->scale(k, inverse_length(p, k), k, p.Dk);
}

void load_query(const GatedDelta& p, const Head& head, int64_t token, float* q) {
  load_row(q, p.q, head.batch, token, head.key_head, p.Dk);
  vector_kernels().rows->scale(q, inverse_length(p, q) * query_scale(p), q, p.Dk);
}

// The tokens [first, first + n) of a head, and what of them does not depend on the state. Matrices of scores have rows
// of chunk_tokens.
class Chunk {
 public:
  Chunk(const GatedDelta& p, float* memory) : p_(p) {
    auto take = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
    keys = take(2 * chunk_tokens * p.Dk);
    values = take(chunk_tokens * p.Dv);
    from_state = take(2 * chunk_tokens * p.Dv);
    U = take(chunk_tokens * p.Dv);
    DU = take(chunk_tokens * p.Dv);
    y = take(chunk_tokens * p.Dv);
    products = take(2 * chunk_tokens * chunk_tokens);
    L = take(chunk_tokens * chunk_tokens);
    A = take(chunk_tokens * chunk_tokens);
    P = take(chunk_tokens * chunk_tokens);
  }

  static int64_t memory_size(const GatedDelta& p) {
    return chunk_tokens * (2 * p.Dk + 6 * p.Dv + 5 * chunk_tokens);
  }

  void load(const Head& head, int64_t first, int64_t count) {
    n = count;
    queries = keys + n * p_.Dk;
    for (int64_t i = 0; i < n; ++i) {
      load_key(p_, head, first + i, keys + i * p_.Dk);
      load_query(p_, head, first + i, queries + i * p_.Dk);
      load_row(values + i * p_.Dv, p_.v, head.batch, first + i, head.value_head, p_.Dv);
      const auto [token_decay, token_beta] = gate_of(p_, head, first + i);
      decay[i] = token_decay;
      beta[i] = token_beta;
      E[i] = i == 0 ? token_decay : E[i - 1] * token_decay;
    }
    const auto& kernels = delta_kernels();
    kernels.decays(L, chunk_tokens, decay, n);
    sgemm(2 * n, n, p_.Dk, {keys, p_.Dk, false}, {keys, p_.Dk, true}, products, chunk_tokens, false);
    for (int64_t i = 0; i < n; ++i) {
      const float* row = L + i * chunk_tokens;
      kernels.multiply(A + i * chunk_tokens, beta[i], products + i * chunk_tokens, row, n);
      kernels.multiply(P + i * chunk_tokens, 1.0f, products + (n + i) * chunk_tokens, row, n);
    }
  }

  // U, D U and y, from the state before the chunk.
  void apply(const float* state) {
    const auto& kernels = delta_kernels();
    const int64_t Dv = p_.Dv;
    sgemm(2 * n, Dv, p_.Dk, {keys, p_.Dk, false}, {state, p_.Dk, true}, from_state, Dv, false);
    for (int64_t i = 0; i < n; ++i) {
      kernels.subtract(U + i * Dv, beta[i], values + i * Dv, E[i], from_state + i * Dv, Dv);
    }
    kernels.solve(A, chunk_tokens, U, n, Dv);
    for (int64_t i = 0; i < n; ++i) {
      vector_kernels().rows->scale(y + i * Dv, E[i], from_state + (n + i) * Dv, Dv);
      vector_kernels().rows->scale(DU + i * Dv, D(i), U + i * Dv, Dv);
    }
    sgemm(n, Dv, n, {P, chunk_tokens, false}, {U, Dv, false}, y, Dv, true);
  }

  // The state after the chunk, once U is known.
  void advance_state(float* state) const {
    vector_kernels().rows->scale(state, E[n - 1], state, p_.Dv * p_.Dk);
    sgemm(p_.Dv, p_.Dk, n, {DU, p_.Dv, true}, {keys, p_.Dk, false}, state, p_.Dk, true);
  }

  float D(int64_t i) const {
    return L[(n - 1) * chunk_tokens + i];
  }

  int64_t n = 0;
  float *keys, *queries = nullptr; // [n, Dk] each, one after the other
  float* values;                   // [n, Dv]
  float* from_state;               // K S, then Q S
  float *U, *DU, *y;               // [n, Dv]
  float* products;                 // K K^T, then Q K^T
  float *L, *A, *P;
  float decay[chunk_tokens];
  float beta[chunk_tokens];
  float E[chunk_tokens];

 private:
  const GatedDelta& p_;
};

void store_tokens(const GatedDelta& p, const Head& head, int64_t first, int64_t count, const float* y) {
  const Element element = p.q.element;
  for (int64_t i = 0; i < count; ++i) {
    void* target = advance(p.y, element, ((head.batch * p.T + first + i) * p.Hv + head.value_head) * p.Dv);
    if (y == nullptr) {
      std::memset(target, 0, static_cast<size_t>(p.Dv * size_of(element)));
    } else {
      vector_kernels().rows->store(element, target, y + i * p.Dv, p.Dv);
    }
  }
}

int64_t state_size(const GatedDelta& p) {
  return p.Dv * p.Dk;
}

float* final_state_of(const GatedDelta& p, const Head& head) {
  return p.final_state + (head.batch * p.Hv + head.value_head) * state_size(p);
}

// The state before the first token; in place where it can be read so, else in `target`.
const float* first_state(const GatedDelta& p, const Head& head, float* target) {
  if (!p.state) {
    std::fill_n(target, state_size(p), 0.0f);
    return target;
  }
  const auto& [batch_stride, head_stride, row_stride, column_stride] = p.state.strides;
  const auto* source =
      static_cast<const float*>(p.state.data) + head.batch * batch_stride + head.value_head * head_stride;
  if (column_stride == 1 && row_stride == p.Dk) {
    return source;
  }
  for (int64_t i = 0; i < p.Dv; ++i) {
    vector_kernels().load(Element::float32, target + i * p.Dk, source + i * row_stride, column_stride, p.Dk);
  }
  return target;
}

void copy_state(const GatedDelta& p, const float* source, float* target) {
  if (source != target) {
    std::memcpy(target, source, static_cast<size_t>(state_size(p)) * sizeof(float));
  }
}

void by_tokens(const GatedDelta& p, const Head& head, Range tokens, float* memory) {
  float* q = memory;
  float* k = q + p.Dk;
  float* v = k + p.Dk;
  float* y = v + p.Dv;
  float* state = final_state_of(p, head);
  const float* before = first_state(p, head, state);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    load_query(p, head, t, q);
    load_key(p, head, t, k);
    load_row(v, p.v, head.batch, t, head.value_head, p.Dv);
    const auto [decay, beta] = gate_of(p, head, t);
    delta_kernels().step({before, q, k, v, decay, beta, state, y}, p.Dk, p.Dv);
    store_tokens(p, head, t, 1, y);
    before = state;
  }
  copy_state(p, before, state);
}

void by_chunks(const GatedDelta& p, const Head& head, Range tokens, float* memory) {
  Chunk chunk(p, memory);
  float* state = final_state_of(p, head);
  copy_state(p, first_state(p, head, state), state);
  for_each_piece(tokens, chunk_tokens, [&](Range piece) {
    chunk.load(head, piece.begin, piece.size());
    chunk.apply(state);
    chunk.advance_state(state);
    store_tokens(p, head, piece.begin, piece.size(), chunk.y);
  });
}

// Gradients of one value head, added to those of its key head's queries and keys. With dY and the gradient dS of the
// state after a chunk, the formulas above give, from the last to the first:
//
//   dU = P^T dY + D (K dS)     Z = (I + A)^-T dU     dX = Z     dA = -Z U^T     dP = dY U^T
//   dS before = E[last] dS + Q^T (E dY) - K^T (E beta Z)
//
// and the logarithm of a token's decay gets what all L, D and E do that hold it: the sums of x dx over them.
class HeadGradient {
 public:
  HeadGradient(const GatedDeltaGradient& g, float* chunk_memory, float* memory)
      : g_(g), p_(g.forward), chunk_(p_, chunk_memory) {
    auto take = [&memory](int64_t count) { return std::exchange(memory, memory + count); };
    dq_ = take(chunk_tokens * p_.Dk);
    dk_ = take(chunk_tokens * p_.Dk);
    products_ = take(chunk_tokens * p_.Dk);
    dy_ = take(chunk_tokens * p_.Dv);
    dU_ = take(chunk_tokens * p_.Dv);
    from_dstate_ = take(chunk_tokens * p_.Dv);
    scores_ = take(chunk_tokens * chunk_tokens);
    dstate_ = take(state_size(p_));
  }

  static int64_t memory_size(const GatedDelta& p) {
    return chunk_tokens * (3 * p.Dk + 3 * p.Dv + chunk_tokens) + state_size(p);
  }

  void run(const Head& head, Range tokens) {
    const int64_t chunks = ceil_div(tokens.size(), chunk_tokens);
    float* states = states_scratch.reserve((chunks + 1) * state_size(p_));
    copy_state(p_, first_state(p_, head, states), states);
    for (int64_t c = 0; c + 1 < chunks; ++c) {
      float* next = states + (c + 1) * state_size(p_);
      std::memcpy(next, states + c * state_size(p_), static_cast<size_t>(state_size(p_)) * sizeof(float));
      chunk_.load(head, tokens.begin + c * chunk_tokens, chunk_tokens);
      chunk_.apply(states + c * state_size(p_));
      chunk_.advance_state(next);
    }
    for (int64_t i = 0; i < p_.Dv; ++i) {
      load_row(dstate_ + i * p_.Dk, g_.dfinal_state, head.batch, head.value_head, i, p_.Dk);
    }
    for (int64_t c = chunks; c-- > 0;) {
      const int64_t first = tokens.begin + c * chunk_tokens;
      backward(head, first, std::min(chunk_tokens, tokens.end - first), states + c * state_size(p_));
    }
    float* dstate = g_.dstate + (head.batch * p_.Hv + head.value_head) * state_size(p_);
    copy_state(p_, dstate_, dstate);
  }

 private:
  void backward(const Head& head, int64_t first, int64_t n, const float* state) {
    chunk_.load(head, first, n);
    chunk_.apply(state);
    std::fill_n(dG_, n, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      load_row(dy_ + i * p_.Dv, g_.dy, head.batch, first + i, head.value_head, p_.Dv);
    }
    through_output(n, state);
    through_state(n, state);
    through_solve(n, state);
    before_chunk(n);
    store(head, first, n);
  }

  // dP, and with it dq and dk through the scores; dq through the state.
  void through_output(int64_t n, const float* state) {
    const auto& kernels = delta_kernels();
    const int64_t Dk = p_.Dk;
    const int64_t Dv = p_.Dv;
    sgemm(n, n, Dv, {dy_, Dv, false}, {chunk_.U, Dv, true}, scores_, chunk_tokens, false);
    const float* query_products = chunk_.products + n * chunk_tokens;
    weigh_scores(n, [&](int64_t i, int64_t j, float dL) { return dL * query_products[i * chunk_tokens + j]; });
    sgemm(n, Dk, n, {scores_, chunk_tokens, false}, {chunk_.keys, Dk, false}, dq_, Dk, false);
    sgemm(n, Dk, n, {scores_, chunk_tokens, true}, {chunk_.queries, Dk, false}, dk_, Dk, false);
    sgemm(n, Dk, Dv, {dy_, Dv, false}, {state, Dk, false}, products_, Dk, false);
    for (int64_t i = 0; i < n; ++i) {
      kernels.accumulate(dq_ + i * Dk, chunk_.E[i], products_ + i * Dk, Dk);
      dG_[i] += chunk_.E[i] * kernels.dot(dy_ + i * Dv, chunk_.from_state + (n + i) * Dv, Dv);
    }
  }

  // scores = lower part of (scores L); `change(i, j, scores L)` is what the logarithm of L[i, j] gets.
  template <typename Change>
  void weigh_scores(int64_t n, Change change) {
    for (int64_t i = 0; i < n; ++i) {
      float* row = scores_ + i * chunk_tokens;
      delta_kernels().multiply(row, 1.0f, row, chunk_.L + i * chunk_tokens, n);
      for (int64_t j = 0; j < i; ++j) {
        const float dlog = change(i, j, row[j]);
        dG_[i] += dlog;
        dG_[j] -= dlog;
      }
    }
  }

  // dU, and dk through the state after the chunk.
  void through_state(int64_t n, const float* state) {
    const auto& kernels = delta_kernels();
    const int64_t Dk = p_.Dk;
    const int64_t Dv = p_.Dv;
    sgemm(n, Dv, Dk, {chunk_.keys, Dk, false}, {dstate_, Dk, true}, from_dstate_, Dv, false);
    sgemm(n, Dv, n, {chunk_.P, chunk_tokens, true}, {dy_, Dv, false}, dU_, Dv, false);
    for (int64_t i = 0; i < n; ++i) {
      kernels.accumulate(dU_ + i * Dv, chunk_.D(i), from_dstate_ + i * Dv, Dv);
      const float dlog = kernels.dot(chunk_.DU + i * Dv, from_dstate_ + i * Dv, Dv);
      dG_[n - 1] += dlog;
      dG_[i] -= dlog;
    }
    sgemm(n, Dk, Dv, {chunk_.DU, Dv, false}, {dstate_, Dk, false}, dk_, Dk, true);
    dG_[n - 1] += chunk_.E[n - 1] * kernels.dot(dstate_, state, state_size(p_));
  }

  // dv, dbeta, and dk through X and A.
  void through_solve(int64_t n, const float* state) {
    const auto& kernels = delta_kernels();
    const int64_t Dk = p_.Dk;
    const int64_t Dv = p_.Dv;
    kernels.solve_transposed(chunk_.A, chunk_tokens, dU_, n, Dv);
    sgemm(n, n, Dv, {dU_, Dv, false}, {chunk_.U, Dv, true}, scores_, chunk_tokens, false);
    std::fill_n(dbeta_, n, 0.0f);
    weigh_scores(n, [&](int64_t i, int64_t j, float dL) {
      const float dbeta = -dL * chunk_.products[i * chunk_tokens + j];
      dbeta_[i] += dbeta;
      return chunk_.beta[i] * dbeta;
    });
    for (int64_t i = 0; i < n; ++i) {
      float* row = scores_ + i * chunk_tokens;
      vector_kernels().rows->scale(row, -chunk_.beta[i], row, i);
      std::fill(row + i, row + n, 0.0f);
    }
    sgemm(n, Dk, n, {scores_, chunk_tokens, false}, {chunk_.keys, Dk, false}, dk_, Dk, true);
    sgemm(n, Dk, n, {scores_, chunk_tokens, true}, {chunk_.keys, Dk, false}, dk_, Dk, true);
    for (int64_t i = 0; i < n; ++i) {
      float* Z = dU_ + i * Dv;
      const float* from_state = chunk_.from_state + i * Dv;
      float* rest = from_dstate_ + i * Dv;
      kernels.subtract(rest, 1.0f, chunk_.values + i * Dv, chunk_.E[i], from_state, Dv);
      dbeta_[i] += kernels.dot(Z, rest, Dv);
      vector_kernels().rows->scale(Z, chunk_.beta[i], Z, Dv); // dv
      const float dlog = chunk_.E[i] * kernels.dot(Z, from_state, Dv);
      dG_[i] -= dlog;
      vector_kernels().rows->scale(rest, -chunk_.E[i], Z, Dv);
    }
    sgemm(n, Dk, Dv, {from_dstate_, Dv, false}, {state, Dk, false}, dk_, Dk, true);
  }

  void before_chunk(int64_t n) {
    const int64_t Dk = p_.Dk;
    const int64_t Dv = p_.Dv;
    const auto& scale = vector_kernels().rows->scale;
    scale(dstate_, chunk_.E[n - 1], dstate_, state_size(p_));
    sgemm(Dv, Dk, n, {from_dstate_, Dv, true}, {chunk_.keys, Dk, false}, dstate_, Dk, true);
    for (int64_t i = 0; i < n; ++i) {
      scale(dy_ + i * Dv, chunk_.E[i], dy_ + i * Dv, Dv);
    }
    sgemm(Dv, Dk, n, {dy_, Dv, true}, {chunk_.queries, Dk, false}, dstate_, Dk, true);
  }

  void store(const Head& head, int64_t first, int64_t n) {
    float later = 0.0f;
    for (int64_t i = n; i-- > 0;) {
      const int64_t token = head.batch * p_.T + first + i;
      const int64_t place = token * p_.Hv + head.value_head;
      later += dG_[i];
      g_.dg[place] = later;
      g_.dbeta[place] = dbeta_[i];
      std::memcpy(g_.dv + place * p_.Dv, dU_ + i * p_.Dv, static_cast<size_t>(p_.Dv) * sizeof(float));
      const int64_t key_place = (token * p_.Hk + head.key_head) * p_.Dk;
      delta_kernels().accumulate(g_.dq + key_place, 1.0f, dq_ + i * p_.Dk, p_.Dk);
      delta_kernels().accumulate(g_.dk + key_place, 1.0f, dk_ + i * p_.Dk, p_.Dk);
    }
  }

  const GatedDeltaGradient& g_;
  const GatedDelta& p_;
  Chunk chunk_;
  float *dq_, *dk_, *products_;
  float *dy_, *dU_, *from_dstate_;
  float* scores_;
  float* dstate_;
  float dG_[chunk_tokens];
  float dbeta_[chunk_tokens];
};

// The gradient of a row x from that of scale x / |x|, in place.
void through_norm(const GatedDelta& p, float* gradient, const float* row, float scale) {
  const float r = inverse_length(p, row);
  const float along = r * r * delta_kernels().dot(row, gradient, p.Dk);
  delta_kernels().subtract(gradient, scale * r, gradient, along, row, p.Dk);
}

void clear(float* data, int64_t count) {
  std::memset(data, 0, static_cast<size_t>(count) * sizeof(float));
}

// All value heads of one key head of one row.
void gradient_of_key_head(const GatedDeltaGradient& g, int64_t batch, int64_t key_head) {
  const auto& p = g.forward;
  const int64_t groups = p.Hv / p.Hk;
  const Range tokens = tokens_of(p.range, batch, p.T);
  for (int64_t t = 0; t < p.T; ++t) {
    const int64_t token = batch * p.T + t;
    const int64_t place = token * p.Hv + key_head * groups;
    clear(g.dq + (token * p.Hk + key_head) * p.Dk, p.Dk);
    clear(g.dk + (token * p.Hk + key_head) * p.Dk, p.Dk);
    clear(g.dv + place * p.Dv, groups * p.Dv);
    clear(g.dg + place, groups);
    clear(g.dbeta + place, groups);
  }
  float* chunk_memory = chunk_scratch.reserve(Chunk::memory_size(p));
  HeadGradient gradient(g, chunk_memory, gradient_scratch.reserve(HeadGradient::memory_size(p) + p.Dk));
  for (int64_t i = 0; i < groups; ++i) {
    gradient.run({batch, key_head * groups + i, key_head}, tokens);
  }
  if (!p.normalize_qk) {
    return;
  }
  float* row = gradient_scratch.reserve(0) + HeadGradient::memory_size(p);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int64_t place = ((batch * p.T + t) * p.Hk + key_head) * p.Dk;
    load_row(row, p.q, batch, t, key_head, p.Dk);
    through_norm(p, g.dq + place, row, query_scale(p));
    load_row(row, p.k, batch, t, key_head, p.Dk);
    through_norm(p, g.dk + place, row, 1.0f);
  }
}

} // namespace

void gated_delta(const GatedDelta& p) {
  const int64_t groups = p.Hk == 0 ? 0 : p.Hv / p.Hk;
  // A single token passes over the state alone: several heads then make a task.
  const int64_t cost = std::max<int64_t>(1, p.T * state_size(p));
  const int64_t heads = std::max<int64_t>(1, 32 * 1024 / cost);
  ThreadPool::instance().parallel_for(ceil_div(p.B * p.Hv, heads), [&](int64_t task) {
    float* memory = chunk_scratch.reserve(std::max(Chunk::memory_size(p), 2 * (p.Dk + p.Dv)));
    for (int64_t i = task * heads; i < std::min((task + 1) * heads, p.B * p.Hv); ++i) {
      const Head head{i / p.Hv, i % p.Hv, i % p.Hv / groups};
      const Range tokens = tokens_of(p.range, head.batch, p.T);
      store_tokens(p, head, 0, tokens.begin, nullptr);
      store_tokens(p, head, tokens.end, p.T - tokens.end, nullptr);
      if (tokens.size() <= few_tokens) {
        by_tokens(p, head, tokens, memory);
      } else {
        by_chunks(p, head, tokens, memory);
      }
    }
  });
}

void gated_delta_gradient(const GatedDeltaGradient& g) {
  const auto& p = g.forward;
  ThreadPool::instance().parallel_for(p.B * p.Hk, [&](int64_t task) {
    gradient_of_key_head(g, task / p.Hk, task % p.Hk);
  });
}

} // namespace tessl::cpu
