#include "backends/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#if defined(__APPLE__)
#define SYMBOL(name) "_" #name
#else
#define SYMBOL(name) #name
#endif

// The registers that a callee must preserve go to the old stack and come from the new one.
#if defined(__x86_64__)
asm(".text\n"
    ".globl " SYMBOL(tessl_switch_fiber) "\n" SYMBOL(
        tessl_switch_fiber
    ) ":\n"
      "  pushq %rbp\n"
      "  pushq %rbx\n"
      "  pushq %r12\n"
      "  pushq %r13\n"
      "  pushq %r14\n"
      "  pushq %r15\n"
      "  movq %rsp, (%rdi)\n"
      "  movq %rsi, %rsp\n"
      "  popq %r15\n"
      "  popq %r14\n"
      "  popq %r13\n"
      "  popq %r12\n"
      "  popq %rbx\n"
      "  popq %rbp\n"
      "  ret\n");
#elif defined(__aarch64__)
asm(".text\n"
    ".globl " SYMBOL(tessl_switch_fiber) "\n" SYMBOL(
        tessl_switch_fiber
    ) ":\n"
      "  sub sp, sp, #160\n"
      "  stp x19, x20, [sp, #0]\n"
      "  stp x21, x22, [sp, #16]\n"
      "  stp x23, x24, [sp, #32]\n"
      "  stp x25, x26, [sp, #48]\n"
      "  stp x27, x28, [sp, #64]\n"
      "  stp x29, x30, [sp, #80]\n"
      "  stp d8, d9, [sp, #96]\n"
      "  stp d10, d11, [sp, #112]\n"
      "  stp d12, d13, [sp, #128]\n"
      "  stp d14, d15, [sp, #144]\n"
      "  mov x9, sp\n"
      "  str x9, [x0]\n"
      "  mov sp, x1\n"
      "  ldp x19, x20, [sp, #0]\n"
      "  ldp x21, x22, [sp, #16]\n"
      "  ldp x23, x24, [sp, #32]\n"
      "  ldp x25, x26, [sp, #48]\n"
      "  ldp x27, x28, [sp, #64]\n"
      "  ldp x29, x30, [sp, #80]\n"
      "  ldp d8, d9, [sp, #96]\n"
      "  ldp d10, d11, [sp, #112]\n"
      "  ldp d12, d13, [sp, #128]\n"
      "  ldp d14, d15, [sp, #144]\n"
      "  add sp, sp, #160\n"
      "  ret\n");
#else
#error "the emulator runs on x86-64 and arm64"
#endif

namespace tessl::emulator {

FiberStacks::FiberStacks(size_t count) : count_(count) {
  void* memory = mmap(nullptr, count * stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  base_ = reinterpret_cast<uintptr_t>(memory);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t i = 0; i < count; ++i) {
    mprotect(reinterpret_cast<void*>(base_ + i * stack_bytes), page, PROT_NONE);
  }
}

FiberStacks::~FiberStacks() {
  munmap(reinterpret_cast<void*>(base_), count_ * stack_bytes);
}

void* FiberStacks::start(size_t i, void (*entry)()) {
  // Tops of stacks are spread over cache sets: all threads of a threadgroup are at about the same depth.
  const uintptr_t top = base_ + (i + 1) * stack_bytes - 256 - (i * 37 % 61) * 64;
#if defined(__x86_64__)
  auto* frame = reinterpret_cast<uintptr_t*>((top & ~uintptr_t{15}) - 8);
  *--frame = reinterpret_cast<uintptr_t>(entry);
  for (int saved = 0; saved < 6; ++saved) {
    *--frame = 0;
  }
#else
  auto* frame = reinterpret_cast<uintptr_t*>((top & ~uintptr_t{15}) - 160);
  for (int saved = 0; saved < 20; ++saved) {
    frame[saved] = 0;
  }
  frame[11] = reinterpret_cast<uintptr_t>(entry); // x30
#endif
  return frame;
}

} // namespace tessl::emulator
