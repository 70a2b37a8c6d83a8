#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/emulator/include/runtime/abi.h"

namespace tessl::emulator {

// A loaded kernel library.
class Library {
 public:
  explicit Library(const std::string& path);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const emu::LibraryInfo& info() const {
    return *info_;
  }
  // Throws std::runtime_error listing what the library has.
  const emu::KernelInfo* kernel(std::string_view name) const;
  const emu::ConstantInfo* constant(int32_t index) const;

  // Whether an address is in the library's own image: its code, its tables, constants of the kernel.
  bool contains(uintptr_t address) const {
    return address >= image_begin_ && address < image_end_;
  }

 private:
  std::string path_;
  const emu::LibraryInfo* info_ = nullptr;
  uintptr_t image_begin_ = 0;
  uintptr_t image_end_ = 0;
};

// The command that compiles a kernel and prints the path of its library. To it are added: the source (a path, or the
// name of a family), the kernel, the MSL version and "checked" or "fast".
void set_compile_command(std::vector<std::string> command);

// Loads a library once; it stays for the life of the process.
const Library& load_library(const std::string& path);
// Compiles first if this process has not yet asked for this kernel.
const Library& load_kernel(const std::string& source, const std::string& kernel, int msl_version, bool checked);

} // namespace tessl::emulator
