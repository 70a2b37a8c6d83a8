#pragma once

#include <string>
#include <string_view>

namespace tessl {

// What a shader library needs of the machine. One metallib each.
enum class Capability {
  portable,    // MSL 3.1, macOS 14: simdgroup_matrix, every Apple silicon Mac
  tensorops,   // MSL 4.0, macOS 26.2, GPU generation 17: matmul2d
  tensorops27, // MSL 4.1, macOS 27: fp8 and fp4 scale planes
};

const char* to_string(Capability capability);

// One entry point of one shader family. Interned: a Kernel lives for the whole process and is compared by address.
struct Kernel {
  std::string name;   // the host_name in the shader, `op_variant_dtype`
  std::string family; // kernels/<family>.metal
  Capability capability;
};

// The one Kernel of this name; the first call defines it.
const Kernel* intern_kernel(std::string_view name, std::string_view family, Capability capability);

} // namespace tessl
