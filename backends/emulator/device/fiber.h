// Contexts of execution within one thread: a few instructions on x86-64, ucontext elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(EMU_UCONTEXT)

struct Fiber {
    void* stack_pointer;
    char* stack;
};

// Saves what a call must preserve on the old stack and takes it from the new one.
extern "C" void emu_switch_stacks(void** save, void* load);
asm(R"(
.text
.globl emu_switch_stacks
.type emu_switch_stacks, @function
emu_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch_stacks, .-emu_switch_stacks
)");

static inline void fiber_switch(Fiber& from, Fiber& to) { emu_switch_stacks(&from.stack_pointer, to.stack_pointer); }

// `entry` must not return.
static inline void fiber_prepare(Fiber& fiber, char* stack, size_t bytes, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + bytes) - 1;  // as after a call: a return address above 16 bytes' alignment
    *top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.stack = stack;
}

#else
#include <ucontext.h>

struct Fiber {
    ucontext_t context;
    char* stack;
};

static inline void fiber_switch(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

static inline void fiber_prepare(Fiber& fiber, char* stack, size_t bytes, void (*entry)()) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = bytes;
    fiber.context.uc_link = nullptr;
    fiber.stack = stack;
    makecontext(&fiber.context, entry, 0);
}

#endif
