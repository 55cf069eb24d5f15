// Runs the units of a cube as fibers, with barriers, shuffles and votes as rendezvous among them.
//
// Checked on the way: that all units of a plane meet in the same shuffle and all units of a cube at the same barrier
// (none may have ended or wait elsewhere); that every access lies in a buffer of the launch, in shared memory or on the
// unit's stack, and is aligned to its size; that no two units touch the same shared memory, one of them writing, without
// a barrier between, nor global memory that one of them has written. The kernel is compiled with -fsanitize=thread, whose calls arrive here. The order of units and of
// cubes follows from the seed of the launch.
#include "interface.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "fiber.h"
#include "traffic.h"
#include "writes.h"

namespace {

enum class Wait : unsigned char { Nothing, Barrier, Plane, PlaneBarrier, Ended };

struct Unit {
    Fiber fiber;
    Wait wait;
    int line;
    uint64_t bits;
};

// Who touched two bytes of shared memory last, and when. Times count barriers of the cube and of the plane.
struct Trace {
    uint32_t write_cube, read_cube;
    uint32_t write_plane, read_plane;
    uint16_t writer, reader;  // unit + 1; PLANE + p for several readers of plane p; MANY for readers of several planes
};
constexpr uint16_t PLANE = 0x8000, MANY = 0xffff;
constexpr size_t STACK = 256 * 1024, GUARD = 4096, MAX_UNITS = 1024, MAX_PLANE = 64;

struct Machine {
    Fiber scheduler;
    char* stacks = nullptr;
    Unit units[MAX_UNITS];
    uint64_t published[MAX_UNITS];
    uint32_t plane_time[MAX_UNITS];
    std::vector<char> shared_store;
    std::vector<Trace> traces;
    Writes writes;
    Traffic traffic;
    char* shared = nullptr;
    EmuKernel kernel = nullptr;
    const EmuLaunch* launch = nullptr;
    unsigned cube[3];
    uint32_t cube_index = 0;
    unsigned current = 0;
    unsigned last_region = 0;
    uint32_t cube_time = 0;
    uint64_t random = 0;
    bool failed = false;
    char* message = nullptr;
    unsigned capacity = 0;
};

__attribute__((tls_model("initial-exec"))) thread_local Machine* machine = nullptr;

uint64_t next_random(Machine& m) {
    m.random += 0x9e3779b97f4a7c15ull;
    uint64_t z = m.random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void say(Machine& m, const char* format, ...) {
    if (m.failed) return;
    m.failed = true;
    va_list list;
    va_start(list, format);
    int used = snprintf(m.message, m.capacity, "cube (%u, %u, %u): ", m.cube[0], m.cube[1], m.cube[2]);
    vsnprintf(m.message + used, m.capacity - used, format, list);
    va_end(list);
}

// Gives control back to the scheduler until it resumes this unit.
void pause(Machine& m, Wait wait, int line) {
    Unit& unit = m.units[m.current];
    unit.wait = wait;
    unit.line = line;
    fiber_switch(unit.fiber, m.scheduler);
}

// Leaves the unit for good.
void abandon(Machine& m) { fiber_switch(m.units[m.current].fiber, m.scheduler); }

void unit_main() {
    Machine& m = *machine;
    m.kernel(m.launch);
    pause(m, Wait::Ended, 0);
}

void check_shared(Machine& m, size_t offset, size_t size, bool write) {
    uint16_t me = uint16_t(m.current + 1);
    unsigned plane = m.current / m.launch->plane;
    uint32_t now = m.plane_time[plane];
    auto of_plane = [&](uint16_t other) {
        return other != MANY && (other >= PLANE ? other - PLANE : (other - 1u) / m.launch->plane) == plane;
    };
    auto clash = [&](uint16_t other, uint32_t cube, uint32_t time) {
        if (other == 0 || other == me || cube != m.cube_time) return false;
        return !(of_plane(other) && time != now);
    };
    for (size_t i = offset / 2; i <= (offset + size - 1) / 2; i++) {
        Trace& t = m.traces[i];
        bool bad = clash(t.writer, t.write_cube, t.write_plane);
        bad = bad || (write && clash(t.reader, t.read_cube, t.read_plane));
        if (bad) {
            uint16_t other = clash(t.writer, t.write_cube, t.write_plane) ? t.writer : t.reader;
            const char* kind = other >= PLANE ? "several units" : "another unit";
            say(m, "unit %u %s byte %zu of shared memory that %s (%u) touched since the last barrier", m.current,
                write ? "writes" : "reads", offset, kind, other >= PLANE ? other - PLANE : other - 1u);
            return abandon(m);
        }
        if (write) {
            t.writer = me, t.write_cube = m.cube_time, t.write_plane = now;
        } else {
            bool first = t.reader == 0 || t.reader == me || t.read_cube != m.cube_time;
            t.reader = first ? me : of_plane(t.reader) ? uint16_t(PLANE + plane) : MANY;
            t.read_cube = m.cube_time, t.read_plane = now;
        }
    }
}

// Global memory: what one unit writes, no other may touch in the same launch without a barrier between.
void check_global(Machine& m, uint64_t at, size_t size, bool write) {
    unsigned plane = m.current / m.launch->plane;
    Write mine{m.cube_index, m.current, m.cube_time, m.plane_time[plane]};
    auto clash = [&](const Write& other) {
        if (other.cube != mine.cube) return true;
        if (other.unit == mine.unit || other.cube_time != mine.cube_time) return false;
        return !(other.unit / m.launch->plane == plane && other.plane_time != mine.plane_time);
    };
    for (uint64_t granule = at / 2; granule <= (at + size - 1) / 2; granule++) {
        Write* other = m.writes.find(granule);
        if (other && clash(*other)) {
            say(m, "unit %u %s global memory that unit %u of cube %u wrote without a barrier between", m.current,
                write ? "writes" : "reads", other->unit, other->cube);
            return abandon(m);
        }
        if (write) m.writes.put(granule, mine);
    }
}

void report_stray(Machine& m, uint64_t at, size_t size, bool write) {
    const EmuLaunch& l = *m.launch;
    const char* verb = write ? "writes" : "reads";
    for (unsigned i = 0; i < l.region_count; i++) {
        uint64_t end = l.regions[i].address + l.regions[i].bytes;
        if (at + size > end && at < end + 4096) {
            return say(m, "unit %u %s %zu bytes, %llu past the end of buffer %u", m.current, verb, size,
                       (unsigned long long)(at + size - end), i);
        }
    }
    say(m, "unit %u %s %zu bytes at %#llx, which belong to no buffer", m.current, verb, size, (unsigned long long)at);
}

void check(void* pointer, size_t size, bool write) {
    Machine* current = machine;
    if (!current || !current->launch) return;
    Machine& m = *current;
    uint64_t at = uint64_t(pointer);
    const Unit& unit = m.units[m.current];
    if (at >= uint64_t(unit.fiber.stack) && at < uint64_t(unit.fiber.stack) + STACK) return;
    if (size <= 16 && (size & (size - 1)) == 0 && at % size != 0) {
        say(m, "unit %u touches %zu bytes at %#llx, which is not aligned", m.current, size, (unsigned long long)at);
        return abandon(m);
    }
    if (at >= uint64_t(m.shared) && at + size <= uint64_t(m.shared) + m.launch->shared_bytes) {
        return check_shared(m, at - uint64_t(m.shared), size, write);
    }
    auto inside = [&](const EmuRegion& r) { return at >= r.address && at + size <= r.address + r.bytes; };
    bool known = m.last_region < m.launch->region_count && inside(m.launch->regions[m.last_region]);
    for (unsigned i = 0; i < m.launch->region_count && !known; i++) {
        known = inside(m.launch->regions[i]);
        if (known) m.last_region = i;
    }
    if (known) {
        m.traffic.count(m.last_region, at, size, write);
        return check_global(m, at, size, write);
    }
    uint64_t info = uint64_t(m.launch->info);
    if (!write && at >= info && at + size <= info + m.launch->info_bytes) return;
    report_stray(m, at, size, write);
    abandon(m);
}

// Runs the lanes of a plane that can run, in an order of the seed, until each waits or has ended.
void run_lanes(Machine& m, unsigned first) {
    unsigned plane = m.launch->plane;
    uint64_t random = next_random(m);
    unsigned start = unsigned(random), stride = unsigned(random >> 32) | 1;
    for (unsigned i = 0; i < plane && !m.failed; i++) {
        unsigned unit = first + ((start + i * stride) & (plane - 1));
        if (m.units[unit].wait != Wait::Nothing) continue;
        m.current = unit;
        fiber_switch(m.scheduler, m.units[unit].fiber);
    }
}

const char* state(const Unit& unit) {
    switch (unit.wait) {
        case Wait::Barrier: return "waits at the cube's barrier of line";
        case Wait::Plane: return "waits in the plane operation of line";
        case Wait::PlaneBarrier: return "waits at the plane's barrier of line";
        case Wait::Ended: return "has ended, line";
        default: return "runs, line";
    }
}

void report_divergence(Machine& m, unsigned a, unsigned b) {
    const Unit &first = m.units[a], &second = m.units[b];
    say(m, "units diverge: unit %u %s %d while unit %u %s %d", a, state(first), first.line, b, state(second), second.line);
}

// Whether all of these units wait for the same thing; reports the first that does not.
bool agree(Machine& m, unsigned first, unsigned count) {
    for (unsigned i = 1; i < count; i++) {
        const Unit &a = m.units[first], &b = m.units[first + i];
        if (a.wait != b.wait || a.line != b.line) {
            report_divergence(m, first, first + i);
            return false;
        }
    }
    return true;
}

// One plane until its units wait at the cube's barrier or have ended.
void run_plane(Machine& m, unsigned first) {
    unsigned plane = m.launch->plane;
    for (;;) {
        run_lanes(m, first);
        if (m.failed || !agree(m, first, plane)) return;
        Wait wait = m.units[first].wait;
        if (wait != Wait::Plane && wait != Wait::PlaneBarrier) return;
        // A shuffle alone orders no memory.
        if (wait == Wait::PlaneBarrier) m.plane_time[first / plane]++;
        for (unsigned i = 0; i < plane; i++) {
            m.published[first + i] = m.units[first + i].bits;
            m.units[first + i].wait = Wait::Nothing;
        }
    }
}

void run_cube(Machine& m) {
    const EmuLaunch& l = *m.launch;
    memset(m.shared, 0xff, l.shared_bytes);
    for (unsigned u = 0; u < l.units; u++) {
        fiber_prepare(m.units[u].fiber, m.stacks + u * (STACK + GUARD) + GUARD, STACK, unit_main);
        m.units[u].wait = Wait::Nothing;
    }
    unsigned planes = l.units / l.plane;
    for (;;) {
        m.cube_time++;
        uint64_t random = next_random(m);
        for (unsigned i = 0; i < planes && !m.failed; i++) run_plane(m, unsigned((random + i) % planes) * l.plane);
        if (m.failed || !agree(m, 0, l.units)) return;
        if (m.units[0].wait == Wait::Ended) return;
        for (unsigned u = 0; u < l.units; u++) m.units[u].wait = Wait::Nothing;
    }
}

Machine& this_machine() {
    if (!machine) {
        machine = new Machine();
        size_t bytes = MAX_UNITS * (STACK + GUARD);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        machine->stacks = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0));
        for (size_t u = 0; u < MAX_UNITS; u++) mprotect(machine->stacks + u * (STACK + GUARD), GUARD, PROT_NONE);
    }
    return *machine;
}

}  // namespace

extern "C" {

int emu_launch(EmuKernel kernel, const EmuLaunch* launch, char* message, unsigned capacity) {
    Machine& m = this_machine();
    m.kernel = kernel, m.launch = launch, m.message = message, m.capacity = capacity;
    m.random = launch->seed, m.failed = false, m.last_region = 0;
    m.cube[0] = m.cube[1] = m.cube[2] = 0;
    bool possible = launch->units <= MAX_UNITS && (launch->plane == 32 || launch->plane == MAX_PLANE);
    if (!possible || launch->units == 0 || launch->units % launch->plane != 0) {
        say(m, "%u units in planes of %u", launch->units, launch->plane);
        m.launch = nullptr;
        return 1;
    }
    m.shared_store.resize(launch->shared_bytes + 64);
    m.shared = reinterpret_cast<char*>((uint64_t(m.shared_store.data()) + 63) / 64 * 64);
    m.traces.assign(launch->shared_bytes / 2 + 1, Trace{});
    memset(m.plane_time, 0, sizeof(m.plane_time));
    m.cube_time = 0;
    m.writes.clear();
    m.traffic.begin(*launch);
    uint64_t total = uint64_t(launch->cubes[0]) * launch->cubes[1] * launch->cubes[2];
    uint64_t start = next_random(m) % total;
    for (uint64_t i = 0; i < total && !m.failed; i++) {
        uint64_t cube = (start + i) % total;
        m.cube_index = uint32_t(cube);
        m.cube[0] = unsigned(cube % launch->cubes[0]);
        m.cube[1] = unsigned(cube / launch->cubes[0] % launch->cubes[1]);
        m.cube[2] = unsigned(cube / launch->cubes[0] / launch->cubes[1]);
        run_cube(m);
    }
    m.launch = nullptr;
    return m.failed;
}

unsigned emu_thread_x() { return machine->current; }
unsigned emu_block(unsigned axis) { return machine->cube[axis]; }
unsigned emu_grid(unsigned axis) { return machine->launch->cubes[axis]; }
unsigned emu_lane() { return machine->current & (machine->launch->plane - 1); }
char* emu_shared() { return machine->shared; }

void emu_barrier(int line) { pause(*machine, Wait::Barrier, line); }

void emu_plane_barrier(int line) { pause(*machine, Wait::PlaneBarrier, line); }

unsigned long long emu_exchange(int line, unsigned long long bits, unsigned source) {
    Machine& m = *machine;
    if (source >= m.launch->plane) {
        say(m, "unit %u reads lane %u of a plane of %u in the shuffle of line %d", m.current, source, m.launch->plane, line);
        abandon(m);
    }
    m.units[m.current].bits = bits;
    pause(m, Wait::Plane, line);
    return m.published[(m.current & ~(m.launch->plane - 1)) + source];
}

unsigned long long emu_vote(int line, bool bit) {
    Machine& m = *machine;
    m.units[m.current].bits = bit;
    pause(m, Wait::Plane, line);
    unsigned first = m.current & ~(m.launch->plane - 1);
    unsigned long long bits = 0;
    for (unsigned i = 0; i < m.launch->plane; i++) bits |= (unsigned long long)(m.published[first + i] & 1) << i;
    return bits;
}

// What -fsanitize=thread calls before every access to memory that is not private to a function.
#define EMU_ACCESS(size)                                                            \
    void __tsan_read##size(void* at) { check(at, size, false); }                    \
    void __tsan_write##size(void* at) { check(at, size, true); }                    \
    void __tsan_unaligned_read##size(void* at) { check(at, size, false); }          \
    void __tsan_unaligned_write##size(void* at) { check(at, size, true); }          \
    void __tsan_read_write##size(void* at) { check(at, size, true); }
EMU_ACCESS(1)
EMU_ACCESS(2)
EMU_ACCESS(4)
EMU_ACCESS(8)
EMU_ACCESS(16)
void __tsan_read_range(void* at, unsigned long size) { check(at, size, false); }
void __tsan_write_range(void* at, unsigned long size) { check(at, size, true); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
