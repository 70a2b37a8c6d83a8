#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tessl {

// A shader family as one text that needs no include path of ours.
struct ShaderSource {
  std::string text;
  uint64_t hash = 0; // of text
};

// Reads `kernels`/<family>.metal and puts each quoted include, written "kernels/...", in place of its first mention.
// Angle-bracket includes stay: they are the compiler's own. Lines keep their numbers through #line.
// Throws std::runtime_error naming file and line: a missing file, a quoted include of another place or under a
// condition, a byte outside ASCII (Metal receives the source in that encoding).
ShaderSource flatten_shader(const std::filesystem::path& kernels, std::string_view family);

// FNV-1a: tells contents apart, resists no adversary.
uint64_t content_hash(std::string_view content);

// 16 hexadecimal digits.
std::string hex(uint64_t hash);

} // namespace tessl
