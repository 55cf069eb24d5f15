// What the generated HIP C++ uses of the HIP headers, on the compiler's own builtins, so that no ROCm is needed.
// Included before every generated source. Wave width is 64 on every architecture that kernels are built for.

#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(units) __attribute__((amdgpu_flat_work_group_size(units, units)))
#define PERILUNE_DEVICE static inline __device__ __attribute__((always_inline))

typedef __SIZE_TYPE__ size_t;
typedef __bf16 __hip_bfloat16;
typedef _Float16 __half;

// Positions, read as fields: threadIdx.x, blockIdx.y, gridDim.z.
#define PERILUNE_COORDINATE(TYPE, X, Y, Z)                                                                             \
    struct TYPE {                                                                                                      \
        __device__ unsigned get_x() const { return X; }                                                                \
        __device__ unsigned get_y() const { return Y; }                                                                \
        __device__ unsigned get_z() const { return Z; }                                                                \
        __declspec(property(get = get_x)) unsigned x;                                                                  \
        __declspec(property(get = get_y)) unsigned y;                                                                  \
        __declspec(property(get = get_z)) unsigned z;                                                                  \
    };
PERILUNE_COORDINATE(PeriluneThread, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                    __builtin_amdgcn_workitem_id_z())
PERILUNE_COORDINATE(PeriluneBlock, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                    __builtin_amdgcn_workgroup_id_z())
PERILUNE_COORDINATE(PeriluneBlockSize, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
                    __builtin_amdgcn_workgroup_size_z())
PERILUNE_COORDINATE(PeriluneGrid, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
                    __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
                    __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z())
static __device__ const PeriluneThread threadIdx{};
static __device__ const PeriluneBlock blockIdx{};
static __device__ const PeriluneBlockSize blockDim{};
static __device__ const PeriluneGrid gridDim{};
#define warpSize 64

// Barriers and fences.
PERILUNE_DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
PERILUNE_DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }

// Lanes. A source lane outside the wave gives the own value, as HIP's shuffles do.
PERILUNE_DEVICE unsigned __lane_id() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
template <class T> PERILUNE_DEVICE T perilune_from_lane(T value, int lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
    if constexpr (sizeof(T) == 4) {
        return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(lane << 2, __builtin_bit_cast(int, value)));
    } else {
        const auto bits = __builtin_bit_cast(unsigned long long, value);
        const unsigned low = __builtin_amdgcn_ds_bpermute(lane << 2, (int)bits);
        const unsigned high = __builtin_amdgcn_ds_bpermute(lane << 2, (int)(bits >> 32));
        return __builtin_bit_cast(T, ((unsigned long long)high << 32) | low);
    }
}
template <class T> PERILUNE_DEVICE T __shfl(T value, int lane) { return perilune_from_lane(value, lane & 63); }
template <class T> PERILUNE_DEVICE T __shfl_xor(T value, int mask) {
    return perilune_from_lane(value, ((int)__lane_id() ^ mask) & 63);
}
template <class T> PERILUNE_DEVICE T __shfl_up(T value, unsigned delta) {
    const int lane = (int)__lane_id();
    return perilune_from_lane(value, lane >= (int)delta ? lane - (int)delta : lane);
}
template <class T> PERILUNE_DEVICE T __shfl_down(T value, unsigned delta) {
    const int lane = (int)__lane_id();
    return perilune_from_lane(value, lane + (int)delta < 64 ? lane + (int)delta : lane);
}
PERILUNE_DEVICE unsigned long long __ballot(int predicate) { return __builtin_amdgcn_ballot_w64(predicate != 0); }
PERILUNE_DEVICE int __any(int predicate) { return __ballot(predicate) != 0; }
PERILUNE_DEVICE int __all(int predicate) { return __ballot(predicate == 0) == 0; }

// Arithmetic of one f32 (bf16 and f16 are widened before they are computed with).
template <class T> PERILUNE_DEVICE T min(T a, T b) { return a < b ? a : b; }
template <class T> PERILUNE_DEVICE T max(T a, T b) { return a > b ? a : b; }
PERILUNE_DEVICE float min(float a, float b) { return __builtin_fminf(a, b); }
PERILUNE_DEVICE float max(float a, float b) { return __builtin_fmaxf(a, b); }
PERILUNE_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PERILUNE_DEVICE float exp(float x) { return __builtin_expf(x); }
PERILUNE_DEVICE float log(float x) { return __builtin_logf(x); }
PERILUNE_DEVICE float sqrt(float x) { return __builtin_sqrtf(x); }
PERILUNE_DEVICE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
PERILUNE_DEVICE float fabs(float x) { return __builtin_fabsf(x); }
PERILUNE_DEVICE float abs(float x) { return __builtin_fabsf(x); }
PERILUNE_DEVICE float floor(float x) { return __builtin_floorf(x); }
PERILUNE_DEVICE float ceil(float x) { return __builtin_ceilf(x); }
PERILUNE_DEVICE float trunc(float x) { return __builtin_truncf(x); }
PERILUNE_DEVICE float rint(float x) { return __builtin_rintf(x); }
PERILUNE_DEVICE bool isnan(float x) { return __builtin_isnan(x); }
PERILUNE_DEVICE bool isinf(float x) { return __builtin_isinf(x); }
PERILUNE_DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
PERILUNE_DEVICE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
PERILUNE_DEVICE int __clz(unsigned x) { return x == 0 ? 32 : __builtin_clz(x); }
PERILUNE_DEVICE int __clzll(unsigned long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
PERILUNE_DEVICE int __ffs(unsigned x) { return __builtin_ffs((int)x); }
template <class T> PERILUNE_DEVICE T atomicAdd(T* address, T value) {
    return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T> PERILUNE_DEVICE T atomicMax(T* address, T value) {
    return __hip_atomic_fetch_max(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
