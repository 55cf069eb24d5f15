// What a launch hands to the runtime; `src/native.rs` has the same structures.
#pragma once

extern "C" {

// A range of memory that a kernel may touch.
struct EmuRegion {
    unsigned long long address;
    unsigned long long bytes;
};

// Bytes of a region that units read and write, and how many different ones.
struct EmuTraffic {
    unsigned long long read, written, distinct_read, distinct_written;
};

struct EmuLaunch {
    unsigned cubes[3];
    unsigned units;
    unsigned plane;
    unsigned shared_bytes;
    unsigned long long seed;
    // The kernel's buffers, then regions that it reaches by offsets from one of them.
    const EmuRegion* regions;
    unsigned region_count;
    unsigned buffer_count;
    const unsigned char* info;
    unsigned info_bytes;
    // Null, or one entry per region to count into.
    EmuTraffic* traffic;
};

// Calls the kernel with the launch's arguments, once per unit.
typedef void (*EmuKernel)(const EmuLaunch*);

// Runs a launch; 0, or 1 with a message of at most `capacity` bytes, zero included.
int emu_launch(EmuKernel kernel, const EmuLaunch* launch, char* message, unsigned capacity);

// Called by kernels.
unsigned emu_thread_x();
unsigned emu_block(unsigned axis);
unsigned emu_grid(unsigned axis);
char* emu_shared();
void emu_barrier(int line);
void emu_plane_barrier(int line);
// Gives `bits` to the plane; every unit gets the slot of `source`. A source outside of the plane is a fault.
unsigned long long emu_exchange(int line, unsigned long long bits, unsigned source);
// The lanes whose `bits` are not 0.
unsigned long long emu_vote(int line, bool bits);
unsigned emu_lane();
}
