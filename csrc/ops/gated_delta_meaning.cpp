#include "ops/gated_delta_meaning.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <mlx/ops.h>

namespace tessl {
namespace {

using Arrays = std::vector<mx::array>;

constexpr int chunk_tokens = 64;
constexpr float norm_eps = 1e-6f;

mx::array float32(const mx::array& x, mx::Stream s) {
  return mx::astype(x, mx::float32, s);
}

mx::array transposed(const mx::array& x, mx::Stream s) {
  return mx::swapaxes(x, -1, -2, s);
}

mx::array l2_normalized(const mx::array& x, float scale, mx::Stream s) {
  const auto squares = mx::sum(mx::square(x, s), -1, /* keepdims = */ true, s);
  const auto length = mx::rsqrt(mx::add(squares, mx::array(norm_eps), s), s);
  return mx::multiply(mx::multiply(x, length, s), mx::array(scale), s);
}

// [B, T]: whether a token is inside of its row's range.
std::optional<mx::array> inside(const GatedDeltaInputs& inputs, mx::Stream s) {
  const int B = inputs.q.shape(0);
  const int T = inputs.q.shape(1);
  const auto t = mx::reshape(mx::arange(T, s), {1, T}, s);
  auto column = [&](const mx::array& x) { return mx::reshape(x, {B, 1}, s); };
  std::optional<mx::array> result;
  if (inputs.starts) {
    result = mx::greater_equal(t, column(*inputs.starts), s);
  }
  if (inputs.lengths) {
    const auto before_end = mx::less(t, column(*inputs.lengths), s);
    result = result ? mx::logical_and(*result, before_end, s) : before_end;
  }
  return result;
}

// [B, T, H, ...] as [B, H, N, C, ...], zeros past the end.
mx::array in_chunks(const mx::array& x, int N, int C, mx::Stream s) {
  auto padding = std::vector<std::pair<int, int>>(x.ndim(), {0, 0});
  padding[1].second = N * C - x.shape(1);
  return mx::moveaxis(mx::unflatten(mx::pad(x, padding, mx::array(0.0f), "constant", s), 1, {N, C}, s), 3, 1, s);
}

// [..., i, j]: the sum of g[j + 1 .. i] for j <= i, minus infinity elsewhere.
mx::array sums_between(const mx::array& g, int C, mx::Stream s) {
  const auto zero = mx::array(0.0f);
  const auto ones = mx::ones({C, C}, mx::bool_, s);
  const auto later = mx::where(mx::tril(ones, -1, s), mx::expand_dims(g, -1, s), zero, s);
  const auto sums = mx::cumsum(later, -2, false, true, s);
  return mx::where(mx::tril(ones, 0, s), sums, mx::array(-std::numeric_limits<float>::infinity()), s);
}

// (I + A)^-1 for a strictly lower A, doubling the inverted blocks on the diagonal: the inverse of [[P, 0], [R, Q]] has
// -Q^-1 R P^-1 below its diagonal.
mx::array unit_lower_inverse(const mx::array& A, int C, mx::Stream s) {
  const auto i = mx::arange(C, s);
  auto W = mx::broadcast_to(mx::eye(C, s), A.shape(), s);
  for (int size = 1; size < C; size *= 2) {
    const auto block = mx::floor_divide(i, mx::array(size), s);
    const auto row = mx::expand_dims(block, 1, s);
    const auto next = mx::equal(row, mx::add(mx::expand_dims(block, 0, s), mx::array(1), s), s);
    const auto odd = mx::equal(mx::remainder(row, mx::array(2), s), mx::array(1), s);
    const auto below = mx::where(mx::logical_and(next, odd, s), A, mx::array(0.0f), s);
    W = mx::subtract(W, mx::matmul(mx::matmul(W, below, s), W, s), s);
  }
  return W;
}

mx::array chunk_of(const mx::array& x, int n, mx::Stream s) {
  return mx::take(x, n, 2, s);
}

// All of H heads; S [B, H, Dk, Dv]. Formulas: mlx_tessl/reference/gated_delta.py.
Arrays over_chunks(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const mx::array& g,
    const mx::array& beta,
    mx::array S,
    mx::Stream s
) {
  const int T = v.shape(1);
  const int C = std::clamp(T, 1, chunk_tokens);
  const int N = (T + C - 1) / C;
  const auto queries = in_chunks(q, N, C, s);
  const auto keys = in_chunks(k, N, C, s);
  const auto log_decay = in_chunks(g, N, C, s);
  const auto strength = mx::expand_dims(in_chunks(beta, N, C, s), -1, s);
  const auto decays = mx::exp(sums_between(log_decay, C, s), s);
  const auto since_start = mx::expand_dims(mx::exp(mx::cumsum(log_decay, -1, false, true, s), s), -1, s);

  const auto key_products = mx::matmul(keys, transposed(keys, s), s);
  const auto A = mx::tril(mx::multiply(mx::multiply(strength, key_products, s), decays, s), -1, s);
  const auto W = unit_lower_inverse(A, C, s);
  const auto u = mx::matmul(W, mx::multiply(strength, in_chunks(v, N, C, s), s), s);
  const auto w = mx::matmul(W, mx::multiply(mx::multiply(strength, since_start, s), keys, s), s);
  const auto P = mx::tril(mx::multiply(mx::matmul(queries, transposed(keys, s), s), decays, s), 0, s);
  const auto decayed_queries = mx::multiply(since_start, queries, s);
  const auto until_end = mx::expand_dims(mx::take(decays, C - 1, -2, s), -1, s);
  const auto decayed_keys = transposed(mx::multiply(until_end, keys, s), s);
  const auto last = mx::expand_dims(mx::take(since_start, C - 1, -2, s), -2, s);

  Arrays ys;
  for (int n = 0; n < N; ++n) {
    const auto U = mx::subtract(chunk_of(u, n, s), mx::matmul(chunk_of(w, n, s), S, s), s);
    ys.push_back(mx::add(mx::matmul(chunk_of(decayed_queries, n, s), S, s), mx::matmul(chunk_of(P, n, s), U, s), s));
    const auto decayed = mx::multiply(chunk_of(last, n, s), S, s);
    S = mx::add(decayed, mx::matmul(chunk_of(decayed_keys, n, s), U, s), s);
  }
  // [B, H, N, C, Dv] as [B, T, H, Dv].
  const auto y = mx::flatten(mx::moveaxis(mx::stack(ys, 2, s), 1, 3, s), 1, 2, s);
  const auto stop = mx::Shape{y.shape(0), T, y.shape(2), y.shape(3)};
  return {mx::slice(y, {0, 0, 0, 0}, stop, s), S};
}

} // namespace

GatedDeltaInputs GatedDeltaInputs::from(const std::vector<mx::array>& inputs, const GatedDeltaForm& form) {
  size_t next = 5;
  auto take = [&](bool is_there) { return is_there ? std::optional(inputs[next++]) : std::nullopt; };
  GatedDeltaInputs named{inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], {}, {}, {}, {}, {}};
  named.state = take(form.has_state);
  named.starts = take(form.has_starts);
  named.lengths = take(form.has_lengths);
  named.A_log = take(form.has_gates);
  named.dt_bias = take(form.has_gates);
  return named;
}

std::vector<mx::array> GatedDeltaInputs::list() const {
  std::vector<mx::array> inputs{q, k, v, g, beta};
  for (const auto* optional : {&state, &starts, &lengths, &A_log, &dt_bias}) {
    if (*optional) {
      inputs.push_back(**optional);
    }
  }
  return inputs;
}

mx::array with_zeros_outside(const mx::array& x, const GatedDeltaInputs& inputs, mx::Stream s) {
  auto visible = inside(inputs, s);
  if (!visible) {
    return x;
  }
  while (visible->ndim() < x.ndim()) {
    visible = mx::expand_dims(*visible, -1, s);
  }
  return mx::where(*visible, x, mx::array(0.0f, x.dtype()), s);
}

std::vector<mx::array> gates_in_stock_ops(
    const mx::array& a, const mx::array& b, const mx::array& A_log, const mx::array& dt_bias, mx::Stream s
) {
  const auto softplus = mx::logaddexp(mx::add(float32(a, s), float32(dt_bias, s), s), mx::array(0.0f), s);
  const auto rate = mx::negative(mx::exp(float32(A_log, s), s), s);
  return {mx::multiply(rate, softplus, s), mx::sigmoid(float32(b, s), s)};
}

std::vector<mx::array> gated_delta_in_stock_ops(
    const std::vector<mx::array>& arrays, const GatedDeltaForm& form, mx::Stream s
) {
  const auto inputs = GatedDeltaInputs::from(arrays, form);
  const auto dtype = inputs.q.dtype();
  const int B = inputs.q.shape(0);
  const int T = inputs.q.shape(1);
  const int Dk = inputs.q.shape(3);
  const int Hv = inputs.v.shape(2);
  const int Dv = inputs.v.shape(3);
  auto S = inputs.state ? float32(*inputs.state, s) : mx::zeros({Hv, Dv, Dk}, mx::float32, s);
  S = mx::broadcast_to(S, {B, Hv, Dv, Dk}, s);
  if (T == 0) {
    return {mx::zeros({B, T, Hv, Dv}, dtype, s), S};
  }
  // A token outside of its row's range neither decays the state nor adds to it. What it holds is hidden before anything
  // is computed of it: a gradient of zero through a NaN would be NaN.
  auto inner = [&](const mx::array& x) { return with_zeros_outside(x, inputs, s); };
  auto q = inner(float32(inputs.q, s));
  auto k = inner(float32(inputs.k, s));
  const auto v = inner(float32(inputs.v, s));
  Arrays gates{inner(float32(inputs.g, s)), inner(float32(inputs.beta, s))};
  if (form.has_gates) {
    gates = gates_in_stock_ops(gates[0], gates[1], *inputs.A_log, *inputs.dt_bias, s);
    gates = {inner(gates[0]), inner(gates[1])};
  }
  if (form.normalize_qk) {
    q = l2_normalized(q, 1.0f / std::sqrt(static_cast<float>(Dk)), s);
    k = l2_normalized(k, 1.0f, s);
  }
  const int groups = Hv / inputs.q.shape(2);
  q = mx::repeat(q, groups, 2, s);
  k = mx::repeat(k, groups, 2, s);
  const auto outputs = over_chunks(q, k, v, gates[0], gates[1], transposed(S, s), s);
  return {mx::astype(outputs[0], dtype, s), transposed(outputs[1], s)};
}

} // namespace tessl
