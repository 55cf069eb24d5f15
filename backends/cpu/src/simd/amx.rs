//! Matrix tiles (AMX): eight registers of 16 rows of 64 bytes, multiplied whole.
//!
//! The loops are assembly, as the tile registers have no types. Each loop is one block that loads its sums, adds and
//! stores them again, so that nothing lives in a tile between two blocks but the configuration.
//!
//! A tile product adds up one result at a time, in the order of the columns, and treats both factors alike: the bits of
//! a result depend neither on the other rows of the tile nor on which factor is called the first.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::marker::PhantomData;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a row of a tile.
pub(crate) const TILE_ROW_BYTES: usize = 64;
/// Bytes of a tile.
pub(crate) const TILE_BYTES: usize = TILE_ROWS * TILE_ROW_BYTES;

/// Whether the processor multiplies tiles of bfloat16 and of bytes, and the system lets this process use them.
pub(crate) fn is_available() -> bool {
    /// AMX-BF16, AMX-TILE, AMX-INT8 of leaf 7.
    const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    /// OSXSAVE of leaf 1.
    const OS_SAVES: u32 = 1 << 27;
    let vectors = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    let vectors = vectors && is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vnni");
    let vectors = vectors && is_x86_feature_detected!("avx512vbmi");
    if !vectors || __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & TILES != TILES || __cpuid(1).ecx & OS_SAVES == 0 {
        return false;
    }
    // SAFETY: OSXSAVE was just checked.
    (unsafe { saves_tiles() }) && ask_permission()
}

/// Whether the system saves tile registers when it switches threads.
///
/// # Safety
/// The processor must have XSAVE, and the system must have enabled it.
#[target_feature(enable = "xsave")]
unsafe fn saves_tiles() -> bool {
    /// Tile configuration and tile data.
    const STATE: u64 = 1 << 17 | 1 << 18;
    // SAFETY: the caller's promise.
    (unsafe { _xgetbv(0) }) & STATE == STATE
}

/// Tile registers are large, so Linux saves them only for processes that asked.
#[cfg(target_os = "linux")]
fn ask_permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: this call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn ask_permission() -> bool {
    false
}

/// The tiles of this thread, set up. Dropping it clears them, so that a switch of threads need not save them.
pub(crate) struct Tiles(());

#[repr(C, align(64))]
struct Configuration([u8; 64]);

impl Tiles {
    /// Tiles 0 to 3 for sums, 4 and 5 for the first factor, 6 and 7 for the second. Tiles 4 and 5 have rows of 64 bytes;
    /// the others of `columns` four-byte elements, at most 16.
    ///
    /// # Safety
    /// The level of the backend must be `Amx`.
    pub(crate) unsafe fn set_up(columns: usize) -> Tiles {
        let narrow = (4 * columns.min(TILE_ROWS)) as u8;
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for tile in 0..8 {
            let is_first_factor = tile == 4 || tile == 5;
            bytes[16 + 2 * tile] = if is_first_factor { TILE_ROW_BYTES as u8 } else { narrow };
            bytes[48 + tile] = TILE_ROWS as u8;
        }
        // SAFETY: the caller's promise; palette 1 has eight tiles of 16 rows of 64 bytes.
        unsafe { Self::load(bytes) }
    }

    /// Tile 0 for sums of 16 by 16, tile 4 for 16 rows of 32 bytes, tile 6 for 32 columns of 16 features, four in a row.
    ///
    /// # Safety
    /// As [`Tiles::set_up`].
    pub(crate) unsafe fn set_up_bytes() -> Tiles {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (tile, rows, row_bytes) in [(0, 16, 64), (4, 16, 32), (6, 8, 64)] {
            bytes[16 + 2 * tile] = row_bytes;
            bytes[48 + tile] = rows;
        }
        // SAFETY: as above.
        unsafe { Self::load(bytes) }
    }

    unsafe fn load(bytes: [u8; 64]) -> Tiles {
        let configuration = Configuration(bytes);
        // SAFETY: the callers' promise; the tiles fit palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) configuration.0.as_ptr(), options(nostack, readonly, preserves_flags)) }
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: a `Tiles` exists only where the processor has them.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Tiles of the first factor, two times sixteen rows of a matrix, with rows of 64 bytes.
#[derive(Clone, Copy)]
pub(crate) struct TileRun {
    /// The first tile of either sixteen rows.
    pub(crate) first: [*const u8; 2],
    /// Bytes from a row of a tile to the next.
    pub(crate) stride: usize,
    /// Bytes from a tile to the next.
    pub(crate) step: usize,
    /// What to ask memory for meanwhile: two tiles' worth of bytes for every step, in rising order. Any address will do.
    pub(crate) ahead: *const u8,
}

impl TileRun {
    /// Bytes from the first tile of rows in memory to what is best asked for at the same time: measured, for rows of one
    /// and two KiB. So many rows at once are too many for the processor to foresee.
    pub(crate) const AHEAD: usize = 4096;

    /// Tiles that lie whole, one after the other, in a cache.
    pub(crate) fn packed(first: [*const u8; 2]) -> TileRun {
        TileRun { first, stride: TILE_ROW_BYTES, step: TILE_BYTES, ahead: first[0] }
    }

    /// Tiles across rows of `row_bytes` that lie one after the other in memory.
    pub(crate) fn across(first: [*const u8; 2], row_bytes: usize) -> TileRun {
        TileRun { first, stride: row_bytes, step: TILE_ROW_BYTES, ahead: first[0].wrapping_add(Self::AHEAD) }
    }

    /// The same tiles, which are in a cache by now.
    pub(crate) fn again(self) -> TileRun {
        TileRun { ahead: self.first[0], ..self }
    }
}

/// Asks for half of what a step should ask for.
macro_rules! ask_ahead {
    ($($line:literal)*) => { concat!($("prefetcht0 [{ahead} + ", $line, "]\n"),*) };
}

/// One step of two tiles of the first factor by three parts of the second. What is to be asked ahead goes between.
macro_rules! step_2x1 {
    ($($first:literal)*; $($second:literal)*) => {
        concat!(
            ask_ahead!($($first)*),
            "tileloadd tmm4, [{a0} + {stride}*1]\n",
            "tileloadd tmm6, [{high} + {row}*1]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "tileloadd tmm5, [{a1} + {stride}*1]\n",
            "tdpbf16ps tmm1, tmm5, tmm6\n",
            ask_ahead!($($second)*),
            "tileloadd tmm7, [{middle} + {row}*1]\n",
            "tdpbf16ps tmm0, tmm4, tmm7\n",
            "tdpbf16ps tmm1, tmm5, tmm7\n",
            "tileloadd tmm6, [{low} + {row}*1]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "tdpbf16ps tmm1, tmm5, tmm6\n",
        )
    };
}

/// Tiles of the second factor: for every step three parts, one after the other, as many columns as were set up.
#[derive(Clone, Copy)]
pub(crate) struct PartTiles {
    /// The first tile.
    pub(crate) first: *const u8,
    /// Columns of a tile, 1 to 16.
    pub(crate) columns: usize,
}

impl PartTiles {
    /// Bytes of a tile of so many columns.
    pub(crate) const fn tile_bytes(columns: usize) -> usize {
        columns * TILE_ROW_BYTES
    }

    /// The first tile of a part.
    fn part(&self, part: usize) -> *const u8 {
        self.first.wrapping_add(part * Self::tile_bytes(self.columns))
    }

    /// Without the first `steps` steps.
    pub(crate) fn skip(self, steps: usize) -> PartTiles {
        PartTiles { first: self.first.wrapping_add(steps * 3 * Self::tile_bytes(self.columns)), ..self }
    }
}

/// `sums_j += Σ_i Σ_p a_(j,i) b_(p,i)` over `count` steps, the three parts of a step before the next step. `sums` holds two
/// tiles, the second [`TILE_BYTES`] after the first.
///
/// # Safety
/// `a` and `b` must hold `count` steps of the shapes set up.
#[inline(always)]
pub(crate) unsafe fn add_2x1(_: &Tiles, a: TileRun, (b, count): (PartTiles, usize), sums: *mut f32) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller's promise; a prefetch may be of any address.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {row}*1]",
            "tileloadd tmm1, [{sums} + {row}*1 + 1024]",
            "2:",
            step_2x1!(
                0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960;
                1024 1088 1152 1216 1280 1344 1408 1472 1536 1600 1664 1728 1792 1856 1920 1984
            ),
            "add {ahead}, 2048",
            "add {a0}, {a_step}",
            "add {a1}, {a_step}",
            "add {high}, {b_step}",
            "add {middle}, {b_step}",
            "add {low}, {b_step}",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 1024], tmm1",
            sums = in(reg) sums,
            row = in(reg) 4 * b.columns,
            a0 = inout(reg) a.first[0] => _,
            a1 = inout(reg) a.first[1] => _,
            stride = in(reg) a.stride,
            a_step = in(reg) a.step,
            ahead = inout(reg) a.ahead => _,
            high = inout(reg) b.part(0) => _,
            middle = inout(reg) b.part(1) => _,
            low = inout(reg) b.part(2) => _,
            b_step = in(reg) 3 * PartTiles::tile_bytes(b.columns),
            count = inout(reg) count => _,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Sums of sixteen rows twice by one second factor that stay in tiles 0 and 1 from step to step, so that the caller makes
/// the tiles of later steps while these are multiplied. The compiler has no use of its own for tiles. Every result is added
/// up as in [`add_2x1`].
pub(crate) struct Sums2x1<'t>(PhantomData<&'t Tiles>);

impl<'t> Sums2x1<'t> {
    /// Sums of nothing.
    ///
    /// # Safety
    /// Until [`Sums2x1::store`] no other products may be made on this thread.
    #[inline(always)]
    pub(crate) unsafe fn zero(_: &'t Tiles) -> Self {
        // SAFETY: a `Tiles` exists only where the processor has them.
        unsafe { asm!("tilezero tmm0", "tilezero tmm1", out("tmm0") _, out("tmm1") _, options(nostack, nomem)) }
        Sums2x1(PhantomData)
    }

    /// Adds the first step.
    ///
    /// # Safety
    /// `a` and `b` must hold a step of the shapes set up.
    #[inline(always)]
    pub(crate) unsafe fn add(&mut self, a: TileRun, b: PartTiles) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                step_2x1!(;),
                a0 = in(reg) a.first[0],
                a1 = in(reg) a.first[1],
                stride = in(reg) a.stride,
                row = in(reg) 4 * b.columns,
                high = in(reg) b.part(0),
                middle = in(reg) b.part(1),
                low = in(reg) b.part(2),
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Writes the sums: two tiles of so many columns, the second [`TILE_BYTES`] after the first.
    ///
    /// # Safety
    /// `sums` must hold them.
    #[inline(always)]
    pub(crate) unsafe fn store(self, columns: usize, sums: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "tilestored [{sums} + {row}*1], tmm0",
                "tilestored [{sums} + {row}*1 + 1024], tmm1",
                sums = in(reg) sums,
                row = in(reg) 4 * columns,
                options(nostack),
            );
        }
    }
}

/// The same for two second factors of sixteen columns: `sums` holds four tiles, those of the first second factor first.
/// Every result is added up as in [`add_2x1`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn add_2x2(_: &Tiles, a: TileRun, (b, count): ([PartTiles; 2], usize), sums: *mut f32) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller's promise; a prefetch may be of any address.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {row}*1]",
            "tileloadd tmm1, [{sums} + {row}*1 + 1024]",
            "tileloadd tmm2, [{sums} + {row}*1 + 2048]",
            "tileloadd tmm3, [{sums} + {row}*1 + 3072]",
            "2:",
            "tileloadd tmm4, [{a0} + {stride}*1]",
            "tileloadd tmm6, [{b0} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a1} + {stride}*1]",
            "tdpbf16ps tmm1, tmm5, tmm6",
            ask_ahead!(0 64 128 192 256 320 384 448 512 576 640 704 768 832 896 960),
            "tileloadd tmm7, [{b1} + {row}*1]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{b0} + {row}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm6",
            ask_ahead!(1024 1088 1152 1216 1280 1344 1408 1472 1536 1600 1664 1728 1792 1856 1920 1984),
            "tileloadd tmm7, [{b1} + {row}*1 + 1024]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{b0} + {row}*1 + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tileloadd tmm7, [{b1} + {row}*1 + 2048]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {ahead}, 2048",
            "add {a0}, {a_step}",
            "add {a1}, {a_step}",
            "add {b0}, 3072",
            "add {b1}, 3072",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 1024], tmm1",
            "tilestored [{sums} + {row}*1 + 2048], tmm2",
            "tilestored [{sums} + {row}*1 + 3072], tmm3",
            sums = in(reg) sums,
            row = in(reg) TILE_ROW_BYTES,
            a0 = inout(reg) a.first[0] => _,
            a1 = inout(reg) a.first[1] => _,
            stride = in(reg) a.stride,
            a_step = in(reg) a.step,
            ahead = inout(reg) a.ahead => _,
            b0 = inout(reg) b[0].first => _,
            b1 = inout(reg) b[1].first => _,
            count = inout(reg) count => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Whole sums of one group of columns: signed bytes times unsigned ones. `sums` is overwritten.
///
/// # Safety
/// `a` must hold 16 rows of 32 bytes, `b` 8 of 64, `sums` 16 of 64; tiles must be set up for bytes.
#[inline(always)]
pub(crate) unsafe fn byte_product(_: &Tiles, (a, stride): (*const u8, usize), b: *const u8, sums: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tileloadd tmm4, [{a} + {stride}*1]",
            "tileloadd tmm6, [{b} + {row}*1]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tilestored [{sums} + {row}*1], tmm0",
            a = in(reg) a,
            stride = in(reg) stride,
            b = in(reg) b,
            row = in(reg) TILE_ROW_BYTES,
            sums = in(reg) sums,
            out("tmm0") _, out("tmm4") _, out("tmm6") _,
            options(nostack),
        );
    }
}
