#include "backends/emulator/guarded_memory.h"

#include <algorithm>
#include <cstring>

#include "launch/decimal.h"

namespace tessl::emulator {

namespace {

constexpr size_t guard_bytes = 4096;
constexpr char poison = '\xff';   // NaN in every float type
constexpr size_t alignment = 256; // what Metal gives

bool is_bound(const Binding& binding) {
  return binding.role != Binding::Role::unused && binding.size() > 0;
}

} // namespace

char* GuardedMemory::Block::data() const {
  // The copy has its original's alignment, up to `alignment`.
  const auto start = (reinterpret_cast<uintptr_t>(memory.get()) + guard_bytes + alignment - 1) / alignment * alignment;
  return reinterpret_cast<char*>(start + reinterpret_cast<uintptr_t>(original) % alignment);
}

bool GuardedMemory::Block::contains(const Binding& binding) const {
  return binding.begin() >= original && binding.begin() + binding.size() <= original + nbytes;
}

size_t GuardedMemory::Block::offset_of(const Binding& binding) const {
  return static_cast<size_t>(binding.begin() - original);
}

std::vector<std::pair<size_t, size_t>> GuardedMemory::Block::results() const {
  auto ranges = outputs;
  ranges.insert(ranges.end(), updated.begin(), updated.end());
  return ranges;
}

GuardedMemory::GuardedMemory(const std::vector<Dispatch>& dispatches) {
  collect(dispatches);
  copy(dispatches);
  moved_ = dispatches;
  for (Dispatch& dispatch : moved_) {
    for (Binding& binding : dispatch.bindings) {
      if (is_bound(binding)) {
        const Block& block = block_of(binding);
        binding.data = block.data() + block.offset_of(binding) + binding.before;
      }
    }
  }
}

// Blocks are the unions of overlapping bindings.
void GuardedMemory::collect(const std::vector<Dispatch>& dispatches) {
  std::vector<const Binding*> bindings;
  for (const Dispatch& dispatch : dispatches) {
    for (const Binding& binding : dispatch.bindings) {
      if (is_bound(binding)) {
        bindings.push_back(&binding);
      }
    }
  }
  std::sort(bindings.begin(), bindings.end(), [](const Binding* a, const Binding* b) {
    return a->begin() < b->begin();
  });
  for (const Binding* binding : bindings) {
    char* begin = binding->begin();
    if (!blocks_.empty() && begin < blocks_.back().original + blocks_.back().nbytes) {
      Block& last = blocks_.back();
      last.nbytes = std::max(last.nbytes, static_cast<size_t>(begin + binding->size() - last.original));
    } else {
      Block block;
      block.original = begin;
      block.nbytes = binding->size();
      block.name = binding->name;
      blocks_.push_back(std::move(block));
    }
  }
}

void GuardedMemory::copy(const std::vector<Dispatch>& dispatches) {
  for (Block& block : blocks_) {
    const size_t total = block.nbytes + 2 * guard_bytes + 2 * alignment;
    block.memory.reset(new char[total]);
    std::memset(block.memory.get(), poison, total);
    block.shadow = std::make_unique<ShadowedRange>(
        block.name, reinterpret_cast<uintptr_t>(block.data()), block.nbytes, false, false, false
    );
  }
  for (const Dispatch& dispatch : dispatches) {
    for (const Binding& binding : dispatch.bindings) {
      if (is_bound(binding) && !binding.scratch) {
        enter(block_of(binding), binding);
      }
    }
  }
}

// Brings in what a binding holds from outside of the dispatches, and notes what it is to hold after them.
void GuardedMemory::enter(Block& block, const Binding& binding) {
  const size_t from = block.offset_of(binding);
  const size_t to = from + binding.size();
  if (binding.role == Binding::Role::output) {
    block.outputs.emplace_back(from, to);
    return;
  }
  std::memcpy(block.data() + from, binding.begin(), binding.size());
  block.shadow->note_writes(from, to);
  if (binding.role == Binding::Role::updated) {
    block.updated.emplace_back(from, to);
  }
}

GuardedMemory::Block& GuardedMemory::block_of(const Binding& binding) {
  return *std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return block.contains(binding); });
}

void GuardedMemory::shadow(const Dispatch& dispatch, Checker& checker) {
  checker.clear_ranges();
  for (Block& block : blocks_) {
    bool bound = false;
    block.shadow->writable_ = false;
    for (const Binding& binding : dispatch.bindings) {
      if (is_bound(binding) && binding.begin() >= block.data() && binding.begin() < block.data() + block.nbytes) {
        bound = true;
        block.shadow->writable_ |= binding.role == Binding::Role::output || binding.role == Binding::Role::updated;
        block.shadow->name_ = binding.name;
      }
    }
    if (bound) {
      checker.add(block.shadow.get());
    }
  }
}

std::vector<std::string> GuardedMemory::findings() const {
  std::vector<std::string> found;
  for (const Block& block : blocks_) {
    const char* begin = block.data();
    const char* end = begin + block.nbytes;
    const auto intact = [](char c) { return c == poison; };
    if (!std::all_of(begin - guard_bytes / 2, begin, intact) || !std::all_of(end, end + guard_bytes / 2, intact)) {
      found.push_back("the guard bands of " + block.name + " were written");
    }
    for (const auto& [from, to] : block.outputs) {
      const size_t missing = block.shadow->first_unwritten(from, to);
      if (missing != to) {
        found.push_back(
            "byte " + decimal(missing - from) + " of " + block.name + ", of " + decimal(to - from) +
            ", is not written: the grid does not cover the output"
        );
      }
    }
  }
  return found;
}

std::vector<char> GuardedMemory::outputs() const {
  std::vector<char> contents;
  for (const Block& block : blocks_) {
    for (const auto& [from, to] : block.results()) {
      contents.insert(contents.end(), block.data() + from, block.data() + to);
    }
  }
  return contents;
}

void GuardedMemory::copy_outputs_back() const {
  for (const Block& block : blocks_) {
    for (const auto& [from, to] : block.results()) {
      std::memcpy(block.original + from, block.data() + from, to - from);
    }
  }
}

} // namespace tessl::emulator
