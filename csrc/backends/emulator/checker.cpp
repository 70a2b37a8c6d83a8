#include "backends/emulator/checker.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "launch/decimal.h"

namespace tessl::emulator {

namespace {

// A stray access this near to a buffer is told by its offset from it.
constexpr int64_t neighbourhood = 1 << 20;

template <typename T>
T* zeroed(size_t count) {
  // calloc maps untouched pages, which most of a shadow is.
  auto* memory = static_cast<T*>(std::calloc(std::max<size_t>(count, 1), sizeof(T)));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

std::string to_string(const emu::Index3& index) {
  return "(" + decimal(index.x) + ", " + decimal(index.y) + ", " + decimal(index.z) + ")";
}

std::string to_string(const ThreadPlace& place) {
  return "thread " + decimal(place.thread()) + " of threadgroup " + to_string(place.threadgroup);
}

const char* verb(emu::Access access) {
  return access == emu::Access::atomic_update ? "updates" : writes(access) ? "writes" : "reads";
}

} // namespace

void ShadowedRange::Free::operator()(void* memory) const {
  std::free(memory);
}

ShadowedRange::ShadowedRange(
    std::string name, uintptr_t base, size_t nbytes, bool is_threadgroup, bool written, bool writable
)
    : name_(std::move(name)),
      base_(base),
      nbytes_(nbytes),
      is_threadgroup_(is_threadgroup),
      writable_(writable),
      writes_(zeroed<ShadowCell>(nbytes)),
      reads_(zeroed<ShadowCell>(nbytes)),
      written_(zeroed<uint8_t>(nbytes)) {
  if (written) {
    std::fill_n(written_.get(), nbytes, uint8_t{1});
  }
}

size_t ShadowedRange::first_unwritten(size_t from, size_t to) const {
  for (size_t i = from; i < to; ++i) {
    if (!written_[i]) {
      return i;
    }
  }
  return to;
}

void ShadowedRange::note_writes(size_t from, size_t to) {
  std::fill(written_.get() + from, written_.get() + to, uint8_t{1});
}

void ShadowedRange::forget_writes(size_t from, size_t to) {
  std::fill(written_.get() + from, written_.get() + to, uint8_t{0});
}

void Checker::add(ShadowedRange* range) {
  ranges_.push_back(range);
}

void Checker::clear_ranges() {
  ranges_.clear();
  last_ = nullptr;
}

void Checker::begin_launch() {
  first_threadgroup_ = threadgroup_ + 1;
}

void Checker::begin_threadgroup() {
  ++threadgroup_;
  threadgroup_epoch_ = device_epoch_ = 1;
  for (auto& epochs : simdgroup_epochs_) {
    std::fill(std::begin(epochs), std::end(epochs), 1);
  }
}

void Checker::threadgroup_barrier(uint32_t flags) {
  threadgroup_epoch_ += flags & emu::barrier_threadgroup ? 1 : 0;
  device_epoch_ += flags & emu::barrier_device ? 1 : 0;
}

void Checker::simdgroup_barrier(uint32_t simdgroup, uint32_t flags) {
  simdgroup_epochs_[0][simdgroup] += flags & emu::barrier_device ? 1 : 0;
  simdgroup_epochs_[1][simdgroup] += flags & emu::barrier_threadgroup ? 1 : 0;
}

ShadowedRange* Checker::find(uintptr_t address) {
  if (last_ != nullptr && last_->contains(address)) {
    return last_;
  }
  for (ShadowedRange* range : ranges_) {
    if (range->contains(address)) {
      return last_ = range;
    }
  }
  return nullptr;
}

bool Checker::conflicts(
    const ShadowCell& cell, const ShadowedRange& range, const ThreadPlace& place, bool atomic
) const {
  if (cell.threadgroup < first_threadgroup_ || (cell.atomic && atomic)) {
    return false;
  }
  if (cell.threadgroup != threadgroup_) {
    return !range.is_threadgroup_;
  }
  using Threads = ShadowCell::Threads;
  if (cell.thread == place.thread() && cell.threads == Threads::one) {
    return false;
  }
  if (cell.epoch != (range.is_threadgroup_ ? threadgroup_epoch_ : device_epoch_)) {
    return false;
  }
  const bool same_simdgroup =
      cell.threads != Threads::several_simdgroups && cell.thread / emu::simd_width == place.simdgroup;
  return !same_simdgroup || cell.simdgroup_epoch == simdgroup_epochs_[range.is_threadgroup_][place.simdgroup];
}

static ShadowCell::Threads apart(uint32_t a, uint32_t b) {
  if (a == b) {
    return ShadowCell::Threads::one;
  }
  return a / emu::simd_width == b / emu::simd_width ? ShadowCell::Threads::several
                                                    : ShadowCell::Threads::several_simdgroups;
}

void Checker::note(
    ShadowedRange& range, uintptr_t address, size_t bytes, emu::Access access, const ThreadPlace& place
) {
  const bool is_read = reads(access);
  const bool is_write = writes(access);
  const bool atomic = is_atomic(access);
  const size_t begin = address - range.base_;
  const size_t end = begin + bytes;
  if (is_write && !range.writable_) {
    report(
        "input " + range.name_,
        to_string(place) + " " + verb(access) + " " + range.name_ + " at byte " + decimal(begin) +
            ", which the launch binds as an input"
    );
  }
  if (is_read && range.first_unwritten(begin, end) != end) {
    report(
        "unwritten " + range.name_,
        to_string(place) + " reads " + range.name_ + " at byte " + decimal(range.first_unwritten(begin, end)) +
            ", which nothing has written"
    );
  }
  const ShadowCell now{
      threadgroup_,
      range.is_threadgroup_ ? threadgroup_epoch_ : device_epoch_,
      simdgroup_epochs_[range.is_threadgroup_][place.simdgroup],
      place.thread(),
      ShadowCell::Threads::one,
      atomic
  };
  bool reported = false;
  for (size_t i = begin; i < end; ++i) {
    ShadowCell& write = range.writes_[i];
    ShadowCell& read = range.reads_[i];
    if (!reported && conflicts(write, range, place, atomic)) {
      report_race(range, i, is_write, write, true, place);
      reported = true;
    }
    if (!reported && is_write && conflicts(read, range, place, atomic)) {
      report_race(range, i, is_write, read, false, place);
      reported = true;
    }
    if (is_write) {
      write = now;
      range.written_[i] = 1;
    }
    if (is_read) {
      const ShadowCell before = read;
      read = now;
      if (before.threadgroup == now.threadgroup && before.epoch == now.epoch) {
        const auto threads = std::max(before.threads, apart(before.thread, now.thread));
        // What the simdgroup read before its last barrier is behind whatever it writes after this read.
        const bool behind =
            threads != ShadowCell::Threads::several_simdgroups && before.simdgroup_epoch != now.simdgroup_epoch;
        read.threads = behind ? ShadowCell::Threads::one : threads;
        read.atomic = before.atomic && atomic;
      }
    }
  }
}

void Checker::report_race(
    const ShadowedRange& range,
    size_t offset,
    bool is_write,
    const ShadowCell& other,
    bool other_wrote,
    const ThreadPlace& place
) {
  const bool elsewhere = other.threadgroup != threadgroup_;
  const std::string whom = elsewhere                                   ? "a thread of another threadgroup"
                           : other.threads != ShadowCell::Threads::one ? "several threads"
                                                                       : "thread " + decimal(other.thread);
  const char* access = is_write ? " writes " : " reads ";
  const char* other_access = other_wrote ? " wrote" : " read";
  const char* apart = elsewhere ? " in the same launch" : " with no barrier between";
  report(
      "race" + range.name_ + access + other_access + apart,
      "race: " + to_string(place) + access + range.name_ + " at byte " + decimal(offset) + ", which " + whom +
          other_access + apart
  );
}

std::string Checker::describe_stray(
    uintptr_t address, size_t bytes, emu::Access access, const ThreadPlace& place
) const {
  const std::string what = to_string(place) + " " + verb(access) + " " + decimal(bytes) + " bytes ";
  const ShadowedRange* nearest = nullptr;
  int64_t least = neighbourhood;
  for (const ShadowedRange* range : ranges_) {
    const auto from_base = static_cast<int64_t>(address - range->base_);
    const auto from_end = from_base - static_cast<int64_t>(range->nbytes_);
    const int64_t distance = from_base < 0 ? -from_base : std::max<int64_t>(from_end, 0);
    if (distance < least) {
      least = distance;
      nearest = range;
    }
  }
  if (nearest == nullptr) {
    return "out of bounds: " + what + "far from every buffer";
  }
  return "out of bounds: " + what + "at byte " + decimal(static_cast<int64_t>(address - nearest->base_)) + " of " +
         nearest->name_ + ", which has " + decimal(nearest->nbytes_) + " bytes";
}

void Checker::report(std::string kind, std::string finding) {
  for (Finding& known : findings_) {
    if (known.kind == kind) {
      ++known.others;
      return;
    }
  }
  findings_.push_back({std::move(kind), std::move(finding), 0});
}

std::vector<std::string> Checker::take_findings() {
  std::vector<std::string> texts;
  for (Finding& finding : std::exchange(findings_, {})) {
    const std::string others = finding.others == 0 ? "" : " (and " + decimal(finding.others) + " more like it)";
    texts.push_back(finding.text + others);
  }
  return texts;
}

} // namespace tessl::emulator
