#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/emulator/checker.h"
#include "backends/emulator/dispatch.h"

namespace tessl::emulator {

// Copies of the buffers of a sequence of dispatches, with guard bands around them and NaN in place of what outputs
// held. Buffers that overlap keep doing so.
class GuardedMemory {
 public:
  explicit GuardedMemory(const std::vector<Dispatch>& dispatches);

  // The dispatches with their bindings moved into the copies.
  const std::vector<Dispatch>& dispatches() const {
    return moved_;
  }
  // Tells the checker of the memory of one dispatch.
  void shadow(const Dispatch& dispatch, Checker& checker);

  // What is wrong with guard bands, and which outputs are not written in full.
  std::vector<std::string> findings() const;
  // Contents of all outputs, one after the other.
  std::vector<char> outputs() const;
  void copy_outputs_back() const;

 private:
  struct Block {
    char* original = nullptr;
    size_t nbytes = 0;
    std::unique_ptr<char[]> memory; // guard, nbytes, guard
    std::string name;
    std::unique_ptr<ShadowedRange> shadow;
    std::vector<std::pair<size_t, size_t>> outputs; // ranges of offsets that must be written in full
    std::vector<std::pair<size_t, size_t>> updated; // and such as may be

    char* data() const;
    bool contains(const Binding& binding) const;
    size_t offset_of(const Binding& binding) const;
    std::vector<std::pair<size_t, size_t>> results() const;
  };

  void collect(const std::vector<Dispatch>& dispatches);
  void copy(const std::vector<Dispatch>& dispatches);
  static void enter(Block& block, const Binding& binding);
  Block& block_of(const Binding& binding);

  std::vector<Block> blocks_;
  std::vector<Dispatch> moved_;
};

} // namespace tessl::emulator
