#include "launch/device_profile.h"

#include <array>
#include <charconv>
#include <stdexcept>

namespace tessl {
namespace {

struct NamedGpu {
  std::string_view name;
  int generation;
  GpuClass gpu_class;
  int cores; // of the full part
};

// Generation is the number in Metal's architecture name (applegpu_g13 is M1); cores from Apple's product pages.
constexpr std::array named_gpus{
    NamedGpu{"m1", 13, GpuClass::base, 8},
    NamedGpu{"m1-pro", 13, GpuClass::max, 16},
    NamedGpu{"m1-max", 13, GpuClass::max, 32},
    NamedGpu{"m1-ultra", 13, GpuClass::ultra, 64},
    NamedGpu{"m2", 14, GpuClass::base, 10},
    NamedGpu{"m2-pro", 14, GpuClass::max, 19},
    NamedGpu{"m2-max", 14, GpuClass::max, 38},
    NamedGpu{"m2-ultra", 14, GpuClass::ultra, 76},
    NamedGpu{"m3", 15, GpuClass::base, 10},
    NamedGpu{"m3-pro", 15, GpuClass::max, 18},
    NamedGpu{"m3-max", 15, GpuClass::max, 40},
    NamedGpu{"m3-ultra", 15, GpuClass::ultra, 80},
    NamedGpu{"m4", 16, GpuClass::base, 10},
    NamedGpu{"m4-pro", 16, GpuClass::max, 20},
    NamedGpu{"m4-max", 16, GpuClass::max, 40},
    NamedGpu{"m5", 17, GpuClass::base, 10},
    NamedGpu{"m5-pro", 17, GpuClass::max, 20},
    NamedGpu{"m5-max", 17, GpuClass::max, 40},
};

// The matrix unit of the GPU core (Apple10) and the OS release whose operand layout MLX accepts.
constexpr int tensorops_generation = 17;
constexpr int tensorops_phone_generation = 18;
constexpr MacosVersion tensorops_macos{26, 2};
constexpr MacosVersion tensorops27_macos{27, 0};

std::string known_gpus() {
  std::string names;
  for (const auto& gpu : named_gpus) {
    names += names.empty() ? "" : ", ";
    names += gpu.name;
  }
  return names;
}

MacosVersion parse_macos(std::string_view text) {
  MacosVersion version;
  const char* end = text.data() + text.size();
  auto [next, error] = std::from_chars(text.data(), end, version.major);
  bool valid = error == std::errc{};
  if (valid && next != end) {
    valid = *next == '.';
    if (valid) {
      auto minor = std::from_chars(next + 1, end, version.minor);
      valid = minor.ec == std::errc{} && minor.ptr == end;
    }
  }
  if (!valid || version.major < 14 || version.minor < 0) {
    throw std::invalid_argument(
        "[mlx_tessl.DeviceProfile] macos is '" + std::string(text) +
        "'; it must be a version from 14 on, such as '15.0' or '26.4'"
    );
  }
  return version;
}

GpuClass class_of_suffix(char suffix) {
  switch (suffix) {
    case 'p':
      return GpuClass::phone;
    case 's':
    case 'c':
      return GpuClass::max;
    case 'd':
      return GpuClass::ultra;
    default:
      return GpuClass::base;
  }
}

// Metal does not tell the number of cores: the most that a part of the class has. A tile that is smaller than need be
// costs less than idle cores.
int cores_of_class(GpuClass gpu_class) {
  switch (gpu_class) {
    case GpuClass::phone:
      return 6;
    case GpuClass::base:
      return 10;
    case GpuClass::max:
      return 40;
    case GpuClass::ultra:
      return 80;
  }
  return 10;
}

} // namespace

bool DeviceProfile::has(Capability capability) const {
  if (capability == Capability::portable) {
    return true;
  }
  if (capability > ceiling) {
    return false;
  }
  const bool matrix_unit =
      generation >= (gpu_class == GpuClass::phone ? tensorops_phone_generation : tensorops_generation);
  const auto& needed = capability == Capability::tensorops ? tensorops_macos : tensorops27_macos;
  return matrix_unit && macos >= needed;
}

Capability DeviceProfile::capability() const {
  if (has(Capability::tensorops27)) {
    return Capability::tensorops27;
  }
  return has(Capability::tensorops) ? Capability::tensorops : Capability::portable;
}

DeviceProfile make_device_profile(std::string_view gpu, std::string_view macos) {
  for (const auto& known : named_gpus) {
    if (known.name == gpu) {
      return {std::string(gpu), known.generation, known.gpu_class, known.cores, parse_macos(macos)};
    }
  }
  throw std::invalid_argument(
      "[mlx_tessl.DeviceProfile] gpu is '" + std::string(gpu) + "'; it must be one of " + known_gpus()
  );
}

DeviceProfile profile_from_architecture(std::string_view architecture, MacosVersion macos) {
  DeviceProfile profile;
  profile.gpu = architecture;
  profile.macos = macos;
  if (architecture.size() >= 3) {
    const auto digits = architecture.substr(architecture.size() - 3, 2);
    std::from_chars(digits.data(), digits.data() + digits.size(), profile.generation);
    profile.gpu_class = class_of_suffix(architecture.back());
    profile.cores = cores_of_class(profile.gpu_class);
  }
  return profile;
}

} // namespace tessl
