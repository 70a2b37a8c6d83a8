#include "backends/emulator/execute.h"

#include <memory>
#include <mutex>
#include <stdexcept>

#include "backends/emulator/contract.h"
#include "backends/emulator/guarded_memory.h"
#include "backends/emulator/machine.h"
#include "backends/emulator/meter.h"

namespace tessl::emulator {

namespace {

const char* to_string(Emulation::Order order) {
  switch (order) {
    case Emulation::Order::forward:
      return "forward";
    case Emulation::Order::reverse:
      return "reverse";
    default:
      return "shuffled";
  }
}

[[noreturn]] void throw_findings(const std::vector<Dispatch>& dispatches, const std::vector<std::string>& findings) {
  std::string message = "[emulator]";
  for (const Dispatch& dispatch : dispatches) {
    message += std::string(" ") + dispatch.kernel->name;
  }
  message += ":";
  for (const std::string& finding : findings) {
    message += "\n  " + finding;
  }
  throw std::runtime_error(message);
}

void read_meter(const Dispatch& dispatch, const emu::Counters& counters, bool checked) {
  add_reading({dispatch.kernel->name, dispatch.grid, dispatch.group, checked, counters});
}

// One run on guarded copies; the contents of all outputs.
std::vector<char> run_checked(GuardedMemory& memory, const Schedule& schedule, bool metered) {
  Checker checker;
  for (const Dispatch& dispatch : memory.dispatches()) {
    memory.shadow(dispatch, checker);
    const emu::Counters counters = the_machine().run(dispatch, schedule, &checker);
    if (metered) {
      read_meter(dispatch, counters, true);
    }
  }
  std::vector<std::string> findings = checker.take_findings();
  for (std::string& finding : memory.findings()) {
    findings.push_back(std::move(finding));
  }
  if (!findings.empty()) {
    throw_findings(memory.dispatches(), findings);
  }
  return memory.outputs();
}

void execute_checked(const std::vector<Dispatch>& dispatches, const Schedule& schedule) {
  constexpr Emulation::Order orders[] = {
      Emulation::Order::forward, Emulation::Order::reverse, Emulation::Order::shuffled
  };
  std::unique_ptr<GuardedMemory> first;
  std::vector<char> expected;
  for (const Emulation::Order order : orders) {
    auto memory = std::make_unique<GuardedMemory>(dispatches);
    std::vector<char> outputs = run_checked(*memory, {order, schedule.seed, schedule.ulp_noise}, first == nullptr);
    if (first == nullptr) {
      first = std::move(memory);
      expected = std::move(outputs);
    } else if (outputs != expected) {
      throw_findings(
          dispatches,
          {std::string("results depend on the order of threads: forward and ") + to_string(order) + " differ"}
      );
    }
  }
  first->copy_outputs_back();
}

} // namespace

void execute(const std::vector<Dispatch>& dispatches, const Schedule& schedule, bool check) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const Dispatch& dispatch : dispatches) {
    check_contract(dispatch);
  }
  if (check) {
    execute_checked(dispatches, schedule);
    return;
  }
  for (const Dispatch& dispatch : dispatches) {
    read_meter(dispatch, the_machine().run(dispatch, schedule, nullptr), false);
  }
}

} // namespace tessl::emulator
