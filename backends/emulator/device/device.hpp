// What CUDA C++ as CubeCL generates it needs of a device: qualifiers, indices, barriers, shuffles, arithmetic, half types.
//
// No system header is included: the generated text declares uint64_t and its kind itself, differently.
#pragma once
#include "interface.h"

typedef __SIZE_TYPE__ size_t;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define warpSize (unsigned(EMU_PLANE))

struct uint3 {
    unsigned x, y, z;
};
#define threadIdx (uint3{emu_thread_x(), 0, 0})
#define blockIdx (uint3{emu_block(0), emu_block(1), emu_block(2)})
#define gridDim (uint3{emu_grid(0), emu_grid(1), emu_grid(2)})

// The mask argument is `__activemask()`; here every plane operation needs its whole plane.
#define __syncthreads() emu_barrier(__LINE__)
#define __syncwarp() emu_plane_barrier(__LINE__)
#define __shfl_sync(mask, value, lane) emu_shuffle(__LINE__, value, unsigned(lane))
#define __shfl_xor_sync(mask, value, bits) emu_shuffle(__LINE__, value, emu_lane() ^ unsigned(bits))
#define __shfl_up_sync(mask, value, delta) emu_shuffle_up(__LINE__, value, unsigned(delta))
#define __shfl_down_sync(mask, value, delta) emu_shuffle_down(__LINE__, value, unsigned(delta))
#define __all_sync(mask, value) (emu_vote(__LINE__, !(value)) == 0)
#define __any_sync(mask, value) (emu_vote(__LINE__, bool(value)) != 0)
#define __ballot_sync(mask, value) emu_ballot(__LINE__, bool(value))
#define __threadfence()

template <typename T>
static inline T emu_shuffle(int line, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = emu_exchange(line, bits, source);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

// Lanes without a partner keep their value.
template <typename T>
static inline T emu_shuffle_up(int line, T value, unsigned delta) {
    unsigned lane = emu_lane();
    return emu_shuffle(line, value, lane < delta ? lane : lane - delta);
}

template <typename T>
static inline T emu_shuffle_down(int line, T value, unsigned delta) {
    unsigned lane = emu_lane();
    return emu_shuffle(line, value, lane + delta < EMU_PLANE ? lane + delta : lane);
}

template <int plane = EMU_PLANE>
static inline unsigned emu_ballot(int line, bool value) {
    static_assert(plane <= 32, "a CUDA ballot has 32 bits");
    return unsigned(emu_vote(line, value));
}

// Arithmetic. Nothing is contracted: a kernel's `fma` is one, everything else rounds at each step.
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#define EMU_UNARY(name)                                                       \
    static inline float name(float x) { return __builtin_##name##f(x); }     \
    static inline double name(double x) { return __builtin_##name(x); }
EMU_UNARY(sqrt)
EMU_UNARY(exp)
EMU_UNARY(log)
EMU_UNARY(expm1)
EMU_UNARY(tanh)
EMU_UNARY(sin)
EMU_UNARY(cos)
EMU_UNARY(fabs)
EMU_UNARY(floor)
EMU_UNARY(ceil)
EMU_UNARY(trunc)
EMU_UNARY(rint)
#undef EMU_UNARY
static inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline float pow(float x, float y) { return __builtin_powf(x, y); }
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
template <typename T>
static inline T max(T a, T b) {
    return a > b ? a : b;
}
template <typename T>
static inline T min(T a, T b) {
    return a < b ? a : b;
}
static inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }

// Units run one at a time, so plain reads and writes are atomic.
template <typename T>
static inline T atomicExch(T* at, T value) {
    T old = *at;
    *at = value;
    return old;
}

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float value) {
        unsigned word = __builtin_bit_cast(unsigned, value);
        bool nan = (word & 0x7fffffffu) > 0x7f800000u;
        bits = nan ? 0x7fff : (unsigned short)((word + 0x7fffu + (word >> 16 & 1)) >> 16);
    }
    operator float() const { return __builtin_bit_cast(float, unsigned(bits) << 16); }
};

struct __half {
    unsigned short bits;
    __half() = default;
    // Round to nearest even by adding the half's last place and letting the float adder round.
    __half(float value) {
        unsigned word = __builtin_bit_cast(unsigned, value), sign = word >> 16 & 0x8000u;
        unsigned magnitude = word & 0x7fffffffu;
        if (magnitude > 0x7f800000u) {
            bits = 0x7fff;
        } else if (magnitude >= 0x477ff000u) {
            bits = (unsigned short)(sign | 0x7c00u);
        } else if (magnitude < 0x38800000u) {
            float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
            bits = (unsigned short)(sign | (__builtin_bit_cast(unsigned, shifted) - 0x3f000000u));
        } else {
            bits = (unsigned short)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13);
        }
    }
    operator float() const {
        unsigned sign = unsigned(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
        if (magnitude >= 0x7c00) {
            return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
        }
        float value = __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
        return sign ? -value : value;
    }
};

#define EMU_UNCHECKED __attribute__((no_sanitize("thread")))
// Calls a kernel with buffers and the structure of a launch, as many as its parameters ask for.
template <typename T>
struct EmuArgument {
    EMU_UNCHECKED static T take(const EmuLaunch* launch, unsigned) { return *reinterpret_cast<const T*>(launch->info); }
};
template <typename T>
struct EmuArgument<T*> {
    EMU_UNCHECKED static T* take(const EmuLaunch* launch, unsigned i) { return reinterpret_cast<T*>(launch->regions[i].address); }
};
template <unsigned... I>
struct EmuIndices {};
template <unsigned N, unsigned... I>
struct EmuCount : EmuCount<N - 1, N - 1, I...> {};
template <unsigned... I>
struct EmuCount<0, I...> {
    typedef EmuIndices<I...> List;
};
template <typename... A, unsigned... I>
EMU_UNCHECKED static inline void emu_apply(void (*kernel)(A...), const EmuLaunch* launch, EmuIndices<I...>) {
    kernel(EmuArgument<A>::take(launch, I)...);
}
template <typename... A>
EMU_UNCHECKED static inline void emu_call(void (*kernel)(A...), const EmuLaunch* launch) {
    emu_apply(kernel, launch, typename EmuCount<sizeof...(A)>::List());
}
