#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include "bindings/bindings.h"
#include "ops/attention.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessl {

void bind_attention(nb::module_& m) {
  m.def(
      "attention",
      [](const mx::array& q,
         const mx::array& k,
         const mx::array& v,
         float scale,
         decltype(AttentionOptions::mask) mask,
         decltype(AttentionOptions::window) window,
         decltype(AttentionOptions::lengths) lengths,
         decltype(AttentionOptions::starts) starts,
         decltype(AttentionOptions::sinks) sinks,
         decltype(AttentionOptions::softcap) softcap,
         decltype(AttentionOptions::prefix) prefix,
         decltype(AttentionOptions::precision) precision,
         mx::StreamOrDevice stream) {
        const AttentionOptions options{mask, window, lengths, starts, sinks, softcap, prefix, precision};
        return attention(q, k, v, scale, options, stream);
      },
      "q"_a,
      "k"_a,
      "v"_a,
      nb::kw_only(),
      "scale"_a,
      "mask"_a.none() = nb::none(),
      "window"_a.none() = nb::none(),
      "lengths"_a.none() = nb::none(),
      "starts"_a.none() = nb::none(),
      "sinks"_a.none() = nb::none(),
      "softcap"_a.none() = nb::none(),
      "prefix"_a.none() = nb::none(),
      "precision"_a.none() = nb::none(),
      "stream"_a.none() = nb::none()
  );
}

} // namespace tessl
