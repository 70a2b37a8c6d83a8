#include "backends/emulator/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <link.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "launch/decimal.h"

extern char** environ;

namespace tessl::emulator {

namespace {

#ifdef __linux__
struct Image {
  uintptr_t inside;
  uintptr_t begin;
  uintptr_t end;
};

int find_image(dl_phdr_info* info, size_t, void* data) {
  auto& image = *static_cast<Image*>(data);
  uintptr_t begin = ~uintptr_t{0}, end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD) {
      begin = std::min<uintptr_t>(begin, info->dlpi_addr + header.p_vaddr);
      end = std::max<uintptr_t>(end, info->dlpi_addr + header.p_vaddr + header.p_memsz);
    }
  }
  if (image.inside < begin || image.inside >= end) {
    return 0;
  }
  image.begin = begin;
  image.end = end;
  return 1;
}
#endif

// Runs a command; returns what it prints. Throws with what it says on stderr when it fails.
std::string run_command(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const auto& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) {
    throw std::runtime_error(std::string("[emulator] cannot make a pipe: ") + std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, pipe_ends[0]);
  posix_spawn_file_actions_addclose(&actions, pipe_ends[1]);
  pid_t child = 0;
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  if (error != 0) {
    close(pipe_ends[0]);
    throw std::runtime_error("[emulator] cannot run " + command[0] + ": " + std::strerror(error));
  }
  std::string output;
  char chunk[4096];
  for (ssize_t n; (n = read(pipe_ends[0], chunk, sizeof(chunk))) != 0;) {
    if (n > 0) {
      output.append(chunk, static_cast<size_t>(n));
    } else if (errno != EINTR) {
      break;
    }
  }
  close(pipe_ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error("[emulator] " + output);
  }
  return output;
}

std::mutex libraries_mutex;
std::vector<std::string> compile_command;

} // namespace

Library::Library(const std::string& path) : path_(path) {
  // Kernels call libm; nothing that they are linked to brings it.
  static void* const libm = dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL);
  static_cast<void>(libm);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw std::runtime_error("[emulator] cannot load a kernel library: " + std::string(dlerror()));
  }
  using Export = const emu::LibraryInfo* (*)();
  const auto get_info = reinterpret_cast<Export>(dlsym(handle, "tessl_kernel_library"));
  if (get_info == nullptr || get_info()->abi != emu::abi_version) {
    throw std::runtime_error("[emulator] " + path + " is not a kernel library of this version");
  }
  info_ = get_info();
#ifdef __linux__
  Image image{reinterpret_cast<uintptr_t>(info_), 0, 0};
  dl_iterate_phdr(find_image, &image);
  image_begin_ = image.begin;
  image_end_ = image.end;
#endif
}

const emu::KernelInfo* Library::kernel(std::string_view name) const {
  std::string known;
  for (uint32_t i = 0; i < info_->kernel_count; ++i) {
    if (name == info_->kernels[i].name) {
      return &info_->kernels[i];
    }
    known += std::string(known.empty() ? "" : ", ") + info_->kernels[i].name;
  }
  throw std::runtime_error("[emulator] no kernel " + std::string(name) + " in " + path_ + "; it has " + known);
}

const emu::ConstantInfo* Library::constant(int32_t index) const {
  for (uint32_t i = 0; i < info_->constant_count; ++i) {
    if (info_->constants[i].index == index) {
      return &info_->constants[i];
    }
  }
  return nullptr;
}

void set_compile_command(std::vector<std::string> command) {
  const std::lock_guard lock(libraries_mutex);
  compile_command = std::move(command);
}

const Library& load_library(const std::string& path) {
  static std::map<std::string, std::unique_ptr<Library>> libraries;
  const std::lock_guard lock(libraries_mutex);
  auto& library = libraries[path];
  if (!library) {
    library = std::make_unique<Library>(path);
  }
  return *library;
}

const Library& load_kernel(const std::string& source, const std::string& kernel, int msl_version, bool checked) {
  static std::map<std::vector<std::string>, std::string> paths; // by the commands that print them
  std::string path;
  std::vector<std::string> command;
  {
    const std::lock_guard lock(libraries_mutex);
    if (compile_command.empty()) {
      throw std::runtime_error("[emulator] no compile command has been set");
    }
    command = compile_command;
    command.insert(command.end(), {source, kernel, decimal(msl_version), checked ? "checked" : "fast"});
    path = paths[command];
  }
  if (path.empty()) {
    path = run_command(command);
    path.erase(path.find_last_not_of('\n') + 1);
    const std::lock_guard lock(libraries_mutex);
    paths[command] = path;
  }
  return load_library(path);
}

} // namespace tessl::emulator
