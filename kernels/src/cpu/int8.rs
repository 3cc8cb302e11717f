//! Weights of linear layers as 8-bit integers, made of a stored matrix at load.
//!
//! A row is cut into blocks of [`BLOCK`] columns; the last one is padded with zeros. A block is 34 bytes: its scale as
//! bf16, then the numbers `q + 128`, `-127 <= q <= 127`. The weight is `scale * q`, one f32 product, and from there on
//! everything is as with stored f32 weights: same order, same bits on every path.
//!
//! Products take eight neighbouring rows at a time, and a processor reads eight long streams faster than one or eight short
//! ones (32 ms instead of 43 for a step of a 0.6B model). So the matrix is eight planes: row `r` is row `r / 8` of plane
//! `r % 8`, and each plane is read from its start to its end. Rows that are missing from the last eight are zeros.
//!
//! `scale = bf16(max |w| / 127)`, `q = w / scale` rounded to the nearest, ties to even. The scale is bf16 because it then
//! has the range of f32 in half the bytes (one part in 17 of the matrix, with f32 one in 9), and because `scale * q` has at
//! most 15 significant bits: the product is exact, so a path may compute it in whatever way suits it. Its error of at most
//! 2^-9 takes no number out of range (127 * (1 + 2^-9) rounds to 127) and is no loss beside it: `q` is made with the scale
//! as it is stored.

use super::shared::SharedMut;
use super::weight::{Elem, with_elem};
use super::{Ctx, Kernel, Lanes, WeightError, WeightRef, dispatch, part_count, part_range};
use half::bf16;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns that share a scale.
pub const BLOCK: usize = 32;
/// Bytes of the scale at the start of a block.
pub(crate) const SCALE_BYTES: usize = 2;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = SCALE_BYTES + BLOCK;
/// Planes of a matrix.
const PLANES: usize = 8;
/// What is added to a number when it is stored.
const BIAS: u8 = 128;
/// The stored form of 0.
pub(crate) const ZERO: u8 = BIAS;
/// Larger weights are refused with NaN and infinities: no model has them, and scales this far from the end of the range
/// may be multiplied by 2^15 on the way (see [`super::pair::Pair::load_bytes_twice`]).
const LIMIT: f32 = 1.0e30;

/// A `[rows, cols]` matrix of 8-bit integers with a scale for each block.
#[derive(Clone, Copy, Debug)]
pub struct Int8Ref<'a> {
    rows: usize,
    cols: usize,
    data: &'a [u8],
}

/// A weight that has no 8-bit form: NaN, infinite, or beyond 1e30.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NotInt8 {
    /// Its row.
    pub row: usize,
    /// Its column.
    pub col: usize,
    /// The weight.
    pub value: f32,
}

impl std::fmt::Display for NotInt8 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { row, col, value } = self;
        write!(f, "holds {value} in row {row}, column {col}: int8 weights are finite and below {LIMIT:e}")
    }
}

impl std::error::Error for NotInt8 {}

impl<'a> Int8Ref<'a> {
    /// Checks that `data` holds exactly the planes of `rows` rows.
    ///
    /// # Errors
    /// [`WeightError`] when it does not.
    pub fn new(rows: usize, cols: usize, data: &'a [u8]) -> Result<Self, WeightError> {
        let expected = Self::bytes(rows, cols);
        if expected == Some(data.len()) {
            Ok(Int8Ref { rows, cols, data })
        } else {
            Err(WeightError { expected, found: data.len() })
        }
    }

    /// Bytes of such a matrix; `None` when the number does not fit a usize.
    pub fn bytes(rows: usize, cols: usize) -> Option<usize> {
        let row = cols.div_ceil(BLOCK).checked_mul(BLOCK_BYTES)?;
        spread(rows.div_ceil(PLANES).checked_mul(row)?)?.checked_mul(PLANES)
    }

    /// Outputs of the linear layer.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the linear layer.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Bytes from a row to the next one of the same eight.
    #[inline(always)]
    pub(crate) fn plane(&self) -> usize {
        self.data.len() / PLANES
    }

    /// Where a row begins; a row that is not there has an address too.
    #[inline(always)]
    pub(crate) fn address(&self, row: usize) -> *const u8 {
        self.data.as_ptr().wrapping_add(place(row, self.cols, self.plane()))
    }

    /// The weight in a place.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        assert!(row < self.rows && col < self.cols, "row {row}, column {col}");
        // SAFETY: the row lies in `data` by the assertion and by `new`, the column in the row.
        unsafe { weight(self.address(row), col) }
    }
}

/// Bytes of a plane whose rows take `bytes`. Planes of 4 KiB and more are an odd multiple of 512 bytes: eight places at the
/// same distance from the starts of their planes then fall on different sets of the first-level cache.
const fn spread(bytes: usize) -> Option<usize> {
    if bytes < 4096 {
        return Some(bytes);
    }
    match bytes.checked_next_multiple_of(512) {
        Some(bytes) if bytes % 1024 == 0 => bytes.checked_add(512),
        bytes => bytes,
    }
}

/// Bytes from the start of a matrix with planes of `plane` bytes to a row.
#[inline(always)]
const fn place(row: usize, cols: usize, plane: usize) -> usize {
    row % PLANES * plane + row / PLANES * row_bytes(cols)
}

/// Bytes of a row.
#[inline(always)]
pub(crate) const fn row_bytes(cols: usize) -> usize {
    cols.div_ceil(BLOCK) * BLOCK_BYTES
}

/// Bytes from the start of a row to the block of element `k`.
#[inline(always)]
pub(crate) const fn block_at(k: usize) -> usize {
    k / BLOCK * BLOCK_BYTES
}

/// Element `k` of a row.
///
/// # Safety
/// The block of element `k` must be readable in the row at `row`.
#[inline(always)]
pub(crate) unsafe fn weight(row: *const u8, k: usize) -> f32 {
    // SAFETY: scale and number lie in the block.
    let (scale, number) = unsafe {
        let block = row.add(block_at(k));
        (block.cast::<[u8; 2]>().read(), block.add(SCALE_BYTES + k % BLOCK).read())
    };
    bf16::from_le_bytes(scale).to_f32() * (f32::from(number) - f32::from(BIAS))
}

/// Fills `out`, `Int8Ref::bytes` of the shape of `w` long, with the 8-bit form of `w`, on all threads.
///
/// # Errors
/// [`NotInt8`] with the first weight that has none; `out` is then of no use.
///
/// # Panics
/// When the length of `out` is another one.
pub fn quantise(ctx: Ctx<'_>, w: WeightRef<'_>, out: &mut [u8]) -> Result<(), NotInt8> {
    let (rows, cols) = (w.rows(), w.cols());
    assert_eq!(Some(out.len()), Int8Ref::bytes(rows, cols), "bytes of an 8-bit matrix of {rows} by {cols}");
    // Turning a weight costs about as much as ten products.
    let groups = rows.div_ceil(PLANES);
    let parts = part_count(&ctx, groups, rows.saturating_mul(cols).saturating_mul(10));
    let plane = out.len() / PLANES;
    let (first_bad, out) = (AtomicUsize::new(usize::MAX), SharedMut::new(out));
    ctx.workers.run(parts, &|part| {
        let range = part_range(groups, parts, part);
        for row in range.start * PLANES..range.end * PLANES {
            // SAFETY: this row belongs to this part alone.
            let out = unsafe { out.part(place(row, cols, plane), row_bytes(cols)) };
            if row >= rows {
                for block in out.chunks_exact_mut(BLOCK_BYTES) {
                    write_zeros(block);
                }
            } else if let Some(bad) = dispatch(ctx.isa, Row { weights: w.row_range(row..row + 1), out }) {
                first_bad.fetch_min(row * cols + bad, Ordering::Relaxed);
                break;
            }
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        bad => Err(NotInt8 { row: bad / cols, col: bad % cols, value: w.get(bad) }),
    }
}

fn write_zeros(block: &mut [u8]) {
    block[..SCALE_BYTES].fill(0);
    block[SCALE_BYTES..].fill(ZERO);
}

struct Row<'a> {
    weights: WeightRef<'a>,
    out: &'a mut [u8],
}

impl Kernel for Row<'_> {
    /// The first column of a weight that has no 8-bit form.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Option<usize> {
        with_elem!(self.weights.dtype(), V, self.blocks())
    }
}

impl Row<'_> {
    #[inline(always)]
    fn blocks<V: Lanes, E: Elem>(self) -> Option<usize> {
        let cols = self.weights.cols();
        let from = self.weights.data().as_ptr();
        let mut col = 0;
        while col < cols {
            let n = (cols - col).min(BLOCK);
            // SAFETY: n elements of the row are left from `col` on, and the block of `col` lies in `out`.
            let fits = unsafe {
                let block = read_block::<V, E>(from.add(col * E::SIZE), n);
                write_block(block, &mut self.out[block_at(col)..][..BLOCK_BYTES])
            };
            if !fits {
                let good = |x: f32| x.is_finite() && x.abs() < LIMIT;
                return (col..col + n).find(|i| !good(self.weights.get(*i))).or(Some(col));
            }
            col += n;
        }
        None
    }
}

/// `n` elements, then zeros.
///
/// # Safety
/// `n <= BLOCK` elements must be readable at `from`.
#[inline(always)]
unsafe fn read_block<V: Lanes, E: Elem>(from: *const u8, n: usize) -> [V; 4] {
    let mut block = [V::splat(0.0); 4];
    // SAFETY: i stays below n; `padded` has eight values.
    unsafe {
        for i in 0..n / 8 {
            block[i] = E::load(from.add(8 * i * E::SIZE));
        }
        if !n.is_multiple_of(8) {
            let mut padded = [0.0f32; 8];
            for i in 0..n % 8 {
                padded[i] = E::load_one(from.add((n / 8 * 8 + i) * E::SIZE));
            }
            block[n / 8] = V::load(padded.as_ptr());
        }
    }
    block
}

/// Writes the 8-bit form of a block, if it has one.
#[inline(always)]
fn write_block<V: Lanes>(block: [V; 4], out: &mut [u8]) -> bool {
    /// Numbers below 2^22 are rounded to integers by the sum with 1.5 * 2^23, ties to even, and lie in its lowest bits.
    const ROUND: f32 = 12_582_912.0 + BIAS as f32;
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    let (mut largest, mut bad) = (zero, zero);
    for i in 0..4 {
        let size = block[i].max(zero.sub(block[i]));
        largest = size.max(largest);
        // NaN is not less than the limit.
        bad = bad.max(size.select_less(V::splat(LIMIT), zero, one));
    }
    if bad.any_greater(zero) {
        return false;
    }
    let stored = bf16::from_f32(largest.largest() / 127.0);
    let scale = stored.to_f32();
    if scale == 0.0 {
        write_zeros(out);
        return true;
    }
    let (scale_bytes, numbers) = out.split_at_mut(SCALE_BYTES);
    scale_bytes.copy_from_slice(&stored.to_le_bytes());
    for i in 0..4 {
        let mut q = block[i].div(V::splat(scale));
        if scale < f32::MIN_POSITIVE {
            // A scale that is denormal has lost bits, and numbers may be out of range.
            let lowest = V::splat(-127.0);
            q = zero.sub(zero.sub(q.max(lowest)).max(lowest));
        }
        // SAFETY: eight of the block's numbers are left from 8 i on.
        unsafe { q.add(V::splat(ROUND)).store_low_bytes(numbers[8 * i..8 * i + 8].as_mut_ptr()) };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::cpu::{Isa, WorkerGroup};

    fn bytes(values: &[f32], dtype: DType) -> Vec<u8> {
        let mut data = vec![0; values.len() * dtype.size()];
        dtype.write_all(&mut data, values);
        data
    }

    fn quantised(values: &[f32], rows: usize, dtype: DType, isa: Isa) -> Result<Vec<u8>, NotInt8> {
        let (data, cols) = (bytes(values, dtype), values.len() / rows);
        let workers = WorkerGroup::new("int8", 2).unwrap();
        let mut out = vec![7; Int8Ref::bytes(rows, cols).unwrap()];
        let w = WeightRef::new(dtype, rows, cols, &data).unwrap();
        quantise(Ctx { isa, workers: &workers }, w, &mut out).map(|()| out)
    }

    #[test]
    fn a_block_is_its_scale_and_numbers_rounded_to_the_nearest() {
        // max 254 gives the scale 2: halves of it are ties and go to even numbers.
        let mut values = vec![0.0; 35];
        values[..7].copy_from_slice(&[254.0, -254.0, 1.0, 3.0, 5.0, -1.0, -3.2]);
        values[32..].copy_from_slice(&[-0.5, 0.25, 0.0]);
        for isa in [Isa::Portable, Isa::fastest()] {
            let out = quantised(&values, 1, DType::F32, isa).unwrap();
            assert_eq!(out.len(), 8 * 68, "seven rows of zeros");
            assert_eq!(out[..2], bf16::from_f32(2.0).to_le_bytes());
            assert_eq!(
                out[2..9].iter().map(|u| i16::from(*u) - 128).collect::<Vec<_>>(),
                [127, -127, 0, 2, 2, 0, -2]
            );
            assert_eq!(out[34..36], bf16::from_f32(0.5 / 127.0).to_le_bytes());
            assert_eq!(out[36..39], [1, 192, 128], "the scale of a block is its own");
            assert!(out[9..34].iter().chain(&out[39..68]).all(|u| *u == ZERO), "padding is zeros");
            assert!(out[68..102] == [&[0, 0][..], &[ZERO; 32]].concat());
            let w = Int8Ref::new(1, 35, &out).unwrap();
            assert_eq!([w.get(0, 1), w.get(0, 6), w.get(0, 34)], [-254.0, -4.0, 0.0]);
        }
    }

    #[test]
    fn the_error_is_at_most_half_a_step() {
        let values: Vec<f32> = (0..64 * 32).map(|i| ((i * 7919 % 2003) as f32 - 1001.0) * 1.3e-5).collect();
        let out = quantised(&values, 32, DType::F32, Isa::fastest()).unwrap();
        let w = Int8Ref::new(32, 64, &out).unwrap();
        for (i, block) in values.chunks(BLOCK).enumerate() {
            let largest = block.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            // The scale may be rounded up or down by one part in 512.
            let half_step = largest / 127.0 * 0.5 * (1.0 + 1.0 / 256.0);
            for (j, x) in block.iter().enumerate() {
                let found = w.get(i / 2, i % 2 * BLOCK + j);
                assert!((found - x).abs() <= half_step, "{x} became {found}, step {}", 2.0 * half_step);
            }
        }
    }

    #[test]
    fn every_path_and_type_gives_the_same_bytes_and_extremes_are_kept() {
        let mut values: Vec<f32> = (0..5 * 71).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        values[..4].copy_from_slice(&[1e-40, -3e-39, 0.0, -0.0]);
        values[71..71 + BLOCK].fill(0.0);
        values[150] = 9e29;
        let paths = [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.supported());
        let all: Vec<_> = paths.map(|isa| quantised(&values, 5, DType::F32, isa).unwrap()).collect();
        assert!(all.iter().all(|bytes| *bytes == all[0]));
        let w = Int8Ref::new(5, 71, &all[0]).unwrap();
        assert_eq!((w.get(1, 3), w.get(0, 2).to_bits()), (0.0, 0), "a block of zeros, and a zero");
        let rounded: Vec<f32> = values.iter().map(|x| DType::Bf16.round(*x)).collect();
        let of_bf16 = quantised(&values, 5, DType::Bf16, Isa::fastest()).unwrap();
        assert_eq!(of_bf16, quantised(&rounded, 5, DType::F32, Isa::Portable).unwrap());
    }

    #[test]
    fn what_has_no_8_bit_form_is_named() {
        for (place, value) in [(0, f32::NAN), (40, f32::INFINITY), (99, -1.1e30)] {
            let mut values = vec![0.5; 150];
            values[place] = value;
            values[140] = f32::NAN;
            let error = quantised(&values, 3, DType::F32, Isa::fastest()).unwrap_err();
            assert_eq!((error.row, error.col), (place / 50, place % 50), "{error}");
            assert_eq!(error.value.to_bits(), value.to_bits());
        }
        let text = NotInt8 { row: 1, col: 2, value: f32::INFINITY }.to_string();
        assert!(text.contains("inf in row 1, column 2") && text.contains("1e30"), "{text}");
    }

    /// Reads at the same distance from the starts of all planes must not meet in one set of a cache of 64 sets.
    #[test]
    fn planes_of_real_models_start_on_different_sets() {
        for (rows, cols) in
            [(3072, 1024), (1024, 2048), (1024, 3072), (576, 1536), (151_936, 1024), (4096, 4096)]
        {
            let bytes = Int8Ref::bytes(rows, cols).unwrap();
            let mut sets: Vec<usize> = (0..8).map(|i| i * (bytes / 8) / 64 % 64).collect();
            sets.sort_unstable();
            sets.dedup();
            assert_eq!(sets.len(), 8, "{rows} by {cols}");
            assert!(bytes <= rows * cols / 32 * 34 + 8 * 1024, "{rows} by {cols}: {bytes} bytes");
        }
    }

    #[test]
    fn length_is_checked() {
        assert!(Int8Ref::new(9, 33, &[0; 2 * 68 * 8]).is_ok());
        let error = Int8Ref::new(9, 33, &[0; 1087]).unwrap_err();
        assert_eq!(error, WeightError { expected: Some(1088), found: 1087 });
        assert!(Int8Ref::new(usize::MAX, 40, &[]).unwrap_err().expected.is_none());
    }
}
