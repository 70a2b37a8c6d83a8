#include "ops/quantization.h"

#include <algorithm>
#include <array>
#include <sstream>

#include <mlx/utils.h>

#include "ops/refusal.h"

namespace tessl {
namespace {

constexpr std::array affine_bits{2, 3, 4, 5, 6, 8};
constexpr std::array affine_groups{32, 64, 128};

template <size_t Count>
bool contains(const std::array<int, Count>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

Quantization of_mode(std::string_view op, const std::string& mode) {
  if (mode == "affine") {
    return {QUANTIZATION_AFFINE, 4, 64};
  }
  if (mode == "mxfp4") {
    return {QUANTIZATION_MXFP4, 4, 32};
  }
  if (mode == "mxfp8") {
    return {QUANTIZATION_MXFP8, 8, 32};
  }
  if (mode == "nvfp4") {
    return {QUANTIZATION_NVFP4, 4, 16};
  }
  refuse(op, "mode is '", mode, "'; it must be 'affine', 'mxfp4', 'mxfp8' or 'nvfp4'");
}

// What the shapes say, for a caller whose bits and group_size say something else: groups of a row hold this many bits.
std::string hint(const mx::array& w, const mx::array& scales) {
  const int64_t groups = scales.shape(-1);
  const int64_t row_bits = int64_t{32} * w.shape(-1);
  if (groups == 0 || row_bits % groups != 0) {
    return "";
  }
  std::ostringstream text;
  text << "; these shapes say that bits * group_size is " << row_bits / groups;
  return text.str();
}

void check_scales(std::string_view op, const Quantization& quantization, const mx::array& scales) {
  if (quantization.is_affine() && !mx::issubdtype(scales.dtype(), mx::floating)) {
    refuse(op, "scales is ", scales.dtype(), "; mode 'affine' takes a floating-point dtype");
  }
  if (!quantization.is_affine() && scales.dtype() != mx::uint8) {
    refuse(op, "scales is ", scales.dtype(), "; mode '", to_string(quantization.mode), "' takes uint8");
  }
}

void check_biases(
    std::string_view op,
    const Quantization& quantization,
    const mx::array& scales,
    const std::optional<mx::array>& biases
) {
  if (!quantization.is_affine()) {
    if (biases) {
      refuse(op, "biases is given; mode '", to_string(quantization.mode), "' has none");
    }
    return;
  }
  if (!biases) {
    refuse(op, "biases is None; mode 'affine' needs them");
  }
  if (!mx::issubdtype(biases->dtype(), mx::floating)) {
    refuse(op, "biases is ", biases->dtype(), "; mode 'affine' takes a floating-point dtype");
  }
  if (biases->shape() != scales.shape()) {
    refuse(op, "biases has shape ", biases->shape(), "; it must have that of scales, ", scales.shape());
  }
}

} // namespace

const char* to_string(QuantizationMode mode) {
  switch (mode) {
    case QUANTIZATION_AFFINE:
      return "affine";
    case QUANTIZATION_MXFP4:
      return "mxfp4";
    case QUANTIZATION_MXFP8:
      return "mxfp8";
    case QUANTIZATION_NVFP4:
      return "nvfp4";
  }
  return "unknown";
}

Quantization parse_quantization(
    std::string_view op, const std::string& mode, std::optional<int> group_size, std::optional<int> bits
) {
  const auto prescribed = of_mode(op, mode);
  const Quantization wanted{
      prescribed.mode, bits.value_or(prescribed.bits), group_size.value_or(prescribed.group_size)
  };
  if (wanted.is_affine()) {
    if (!contains(affine_bits, wanted.bits)) {
      refuse(op, "bits is ", wanted.bits, "; mode 'affine' takes 2, 3, 4, 5, 6 or 8");
    }
    if (!contains(affine_groups, wanted.group_size)) {
      refuse(op, "group_size is ", wanted.group_size, "; mode 'affine' takes 32, 64 or 128");
    }
    return wanted;
  }
  if (wanted.bits != prescribed.bits) {
    refuse(op, "bits is ", wanted.bits, "; mode '", mode, "' takes ", prescribed.bits);
  }
  if (wanted.group_size != prescribed.group_size) {
    refuse(op, "group_size is ", wanted.group_size, "; mode '", mode, "' takes ", prescribed.group_size);
  }
  return wanted;
}

int check_packed_matrix(
    std::string_view op,
    const Quantization& quantization,
    const mx::array& w,
    const mx::array& scales,
    const std::optional<mx::array>& biases
) {
  if (w.dtype() != mx::uint32) {
    refuse(op, "w is ", w.dtype(), "; packed weights are uint32");
  }
  if (w.ndim() < 2) {
    refuse(op, "w has shape ", w.shape(), "; it must have 2 dimensions or more");
  }
  check_scales(op, quantization, scales);
  check_biases(op, quantization, scales, biases);
  const bool same_rows =
      scales.ndim() == w.ndim() && std::equal(w.shape().begin(), w.shape().end() - 1, scales.shape().begin());
  if (!same_rows) {
    refuse(op, "scales has shape ", scales.shape(), "; all but its last dimension must be those of w, ", w.shape());
  }
  const int64_t columns = int64_t{scales.shape(-1)} * quantization.group_size;
  if (int64_t{w.shape(-1)} * 32 != columns * quantization.bits || columns > INT32_MAX) {
    refuse(
        op,
        "w has shape ",
        w.shape(),
        " and scales ",
        scales.shape(),
        ", which do not belong together with bits = ",
        quantization.bits,
        " and group_size = ",
        quantization.group_size,
        hint(w, scales)
    );
  }
  return static_cast<int>(columns);
}

} // namespace tessl
