#include "backends/emulator/meter.h"

#include <deque>
#include <mutex>

namespace tessl::emulator {

namespace {

constexpr size_t max_readings = 65536;

std::mutex mutex;
std::deque<Reading> readings;

} // namespace

void add_reading(Reading reading) {
  const std::lock_guard lock(mutex);
  if (readings.size() == max_readings) {
    readings.pop_front();
  }
  readings.push_back(std::move(reading));
}

std::vector<Reading> take_readings() {
  const std::lock_guard lock(mutex);
  std::vector<Reading> taken(readings.begin(), readings.end());
  readings.clear();
  return taken;
}

} // namespace tessl::emulator
