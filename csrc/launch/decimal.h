#pragma once

#include <charconv>
#include <concepts>
#include <string>

namespace tessl {

// std::to_string for every integer type: of libc++'s own overloads MLX's binaries import but a few, and tests/proof
// holds our imports to theirs.
template <std::integral T>
std::string decimal(T value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return {digits, end};
}

} // namespace tessl
