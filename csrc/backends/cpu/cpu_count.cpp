#include "backends/cpu/cpu_count.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tessl::cpu {
namespace {

#if defined(__linux__)

namespace fs = std::filesystem;

constexpr double no_limit = std::numeric_limits<double>::infinity();

int affinity_count() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return CPU_COUNT(&set);
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Control groups v2: "cpu.max" holds the quota, or "max", and the period.
double quota_v2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  std::string quota;
  double period = 0.0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0.0) {
    return no_limit;
  }
  return std::stod(quota) / period;
}

// Control groups v1: a quota of -1 is none.
double quota_v1(const fs::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us");
  std::ifstream period_file(group / "cpu.cfs_period_us");
  double quota = -1.0;
  double period = 0.0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0.0 || period <= 0.0) {
    return no_limit;
  }
  return quota / period;
}

// The least quota of a group and its ancestors up to the mount.
double quota_along(const fs::path& mount, const fs::path& group, double (*quota)(const fs::path&)) {
  double least = quota(mount);
  fs::path path = mount;
  for (const auto& part : group.relative_path()) {
    path /= part;
    least = std::min(least, quota(path));
  }
  return least;
}

// A line of /proc/self/cgroup is "hierarchy:controllers:path", version 2 being "0::path".
double cgroup_quota() {
  const fs::path root = "/sys/fs/cgroup";
  double least = no_limit;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const auto controllers = std::string(",").append(line, first + 1, second - first - 1).append(",");
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, quota_along(root, group, quota_v2));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      least = std::min(least, quota_along(root / "cpu", group, quota_v1));
    }
  }
  return least;
}

int count() {
  return static_cast<int>(std::min<double>(affinity_count(), std::ceil(cgroup_quota())));
}

#elif defined(__APPLE__)

// Efficiency cores would hold up every panel that they take.
int count() {
  int cores = 0;
  size_t size = sizeof(cores);
  if (sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, nullptr, 0) == 0) {
    return cores;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

#endif

} // namespace

int available_cpus() {
  return std::max(1, count());
}

} // namespace tessl::cpu
